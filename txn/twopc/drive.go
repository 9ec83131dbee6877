package twopc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// pause is the backoff between calls of a participant.
var pause = backoff.Policy{First: 100 * time.Millisecond, Max: 30 * time.Second}

// secondPhase drives the second phase for the coordinator.
type secondPhase struct{ engine *Engine }

// Drive commits the branches of a commit, and ends the transaction. It repeats failed commits without a
// bound.
func (d secondPhase) Drive(t *coordinator.Turn) error {
	m, err := replay(t.Entries())
	if err != nil {
		return bug("drive transaction", t.ID(), err)
	}
	switch {
	case m.state == Aborted && !m.ended && !t.Fresh() && !t.Due():
		return nil // see readOrAbort
	case m.state == Aborted && !m.ended: // branches are rolled back by the process that finds them
		return t.End(end())
	case m.settled(), m.halted != "":
		return d.remind(t, m)
	case !m.ended:
		return d.finish(t, m)
	}
	return nil
}

// finish commits until all branches are committed, or only an operator can act.
func (d secondPhase) finish(t *coordinator.Turn, m machine) error {
	r, err := parse(m.name(t.ID()))
	if err != nil {
		return bug("drive transaction", t.ID(), err)
	}
	if t.TakenOver() {
		if m, err = d.countTakeOver(t, m); err != nil || m.halted != "" {
			return err
		}
	}
	left, failed := m.left(), failures{before: map[string]int{}}
	for _, p := range m.branches {
		failed.before[p.name] = p.attempts
	}
	for attempt := 1; ; attempt++ {
		a := sortResults(left, t.Round(d.tasks(r, left, attempt)...))
		left = a.failed
		if entries := m.recordsAfter(a); len(entries) > 0 {
			if m, err = d.append(t, m, entries); err != nil || len(m.left()) == 0 {
				return err
			}
		}
		if err := t.Holds(); err != nil { // then some were not called
			return d.handOver(t, m, err)
		}
		if entries := failed.of(m, a, attempt, t.Now()); len(entries) > 0 {
			if m, err = d.append(t, m, entries); err != nil {
				return err
			}
		}
		asked := a.asked()
		wait, targets := max(pause.Delay(attempt, t.Random()), asked), left
		if asked > 0 { // nothing is called before
			targets = nil
		}
		for i, name := range left {
			coordinator.Emit(d.engine.options.Hooks.Tried, observe.TwoPCTried{Transaction: r.String(), Participant: name, Commit: true, Attempt: attempt, Err: a.errs[i], Again: wait})
		}
		t.Pause(wait, targets...) // if the claim ends meanwhile, the next round calls nothing
	}
}

// name returns the name of the decided run at participants.
func (m *machine) name(key string) string { return run{key: key, sign: m.data.Run}.String() }

// tasks returns the calls that commit these branches.
func (d secondPhase) tasks(r run, names []string, attempt int) []coordinator.Task {
	tasks := make([]coordinator.Task, len(names))
	for i, name := range names {
		x := r.xid(name)
		tasks[i] = coordinator.Task{
			Target: name, Timeout: d.engine.options.Timeout,
			Call: branch.Call{Transaction: x.Transaction, Branch: name, Operation: branch.Commit, Attempt: attempt, Begun: r.began},
			Do: func(ctx context.Context) error {
				p, err := d.engine.participant(name)
				if err != nil {
					return err
				}
				err = p.Commit(ctx, x)
				if errors.Is(err, driver.ErrHeuristic) {
					return branch.Fail(err) // not a failure of the target
				}
				return err
			},
		}
	}
	return tasks
}

// append appends records, and calls the hooks once they are durable. If they are too many for one append,
// each prefix is a valid state to continue from.
func (d secondPhase) append(t *coordinator.Turn, m machine, entries []journal.Entry) (machine, error) {
	if len(entries) > driver.MaxRecords {
		m, err := d.append(t, m, entries[:driver.MaxRecords])
		if err != nil {
			return m, err
		}
		return d.append(t, m, entries[driver.MaxRecords:])
	}
	next, err := m.with(entries...)
	switch {
	case err != nil:
		return m, bug("drive transaction", t.ID(), err)
	case next.ended:
		err = t.End(entries...)
	case next.settled(), next.halted != "":
		err = t.Append(t.Now().Add(d.engine.options.Remind), entries...)
	default:
		err = t.Append(time.Time{}, entries...)
	}
	if err != nil {
		return m, err
	}
	d.announce(t.ID(), next)
	return next, nil
}

func (d secondPhase) announce(key string, m machine) {
	switch hooks := d.engine.options.Hooks; {
	case m.halted != "":
		coordinator.Emit(hooks.Halted, observe.TwoPCHalted{Transaction: m.name(key), Participants: m.left(), Reason: m.halted})
	case m.state == Heuristic:
		coordinator.Emit(hooks.Heuristic, observe.TwoPCHeuristic{Transaction: m.name(key), Participants: m.withFate(againstDecision),
			Commit: m.decision == Commit, Err: errors.New(m.heuristicErrors())})
	case m.ended:
		coordinator.Emit(hooks.Ended, observe.TwoPCEnded{Transaction: m.name(key), State: string(m.state)})
	}
}

// remind reports a transaction that waits for an operator again, when it is due.
func (d secondPhase) remind(t *coordinator.Turn, m machine) error {
	if !t.Due() {
		return nil
	}
	_, err := d.append(t, m, []journal.Entry{{Kind: recordRemind}})
	return err
}

// A call that crashes its process will crash the next owner's process too. So take-overs are
// counted in the journal before any call, and any answer ends the count. After too many the
// transaction is halted: it stays decided and its branches prepared until an operator resumes it.

// recordFailure applies a failure of the second phase, a take-over, a halt or a retry.
func (m *machine) recordFailure(e journal.Entry) error {
	var w reasonData
	if e.Kind != recordTaken {
		if err := json.Unmarshal(e.Data, &w); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(m.branches, func(p progress) bool { return p.name == e.Step && p.fate == open })
	switch {
	case len(m.left()) == 0, e.Kind == recordFailing && i < 0, (e.Kind == recordRetry) != (m.halted != ""):
		return errOrder
	case e.Kind == recordTaken:
		m.takeOvers++
	case e.Kind == recordHalted:
		m.halted = w.Text
	case e.Kind == recordRetry:
		m.halted = ""
	default:
		m.branches[i].err, m.branches[i].attempts = w.Text, w.Attempts
	}
	return nil
}

// countTakeOver counts a take-over, and halts the transaction after too many.
func (d secondPhase) countTakeOver(t *coordinator.Turn, m machine) (machine, error) {
	n := m.takeOvers + 1
	if !t.Exhausted(n) {
		return d.append(t, m, []journal.Entry{{Kind: recordTaken}})
	}
	text := fmt.Sprintf("it was taken over %d times in a row while participants were called to commit, and none answered: its process seems to crash each time", n)
	return d.append(t, m, []journal.Entry{record(recordHalted, "", reasonData{Text: text})})
}

// handOver records that an owner which stops because of gone has not crashed, which ends the count of
// take-overs.
func (d secondPhase) handOver(t *coordinator.Turn, m machine, gone error) error {
	i := slices.IndexFunc(m.branches, func(p progress) bool { return p.fate == open })
	if i < 0 || m.takeOvers == 0 || !t.HandsOver() {
		return gone
	}
	p := m.branches[i]
	_, err := d.append(t, m, []journal.Entry{record(recordFailing, p.name, reasonData{Text: p.err, Attempts: p.attempts})})
	return errors.Join(gone, err)
}

// failures are the failed calls of a drive.
type failures struct {
	before map[string]int // as recorded when the drive began
	log    coordinator.FailureLog
}

func (f *failures) of(m machine, a commitResults, attempt int, now time.Time) (entries []journal.Entry) {
	if len(a.failed) == 0 || !f.log.Records(attempt, m.takeOvers, now) {
		return nil
	}
	for i, name := range a.failed {
		entries = append(entries, record(recordFailing, name, reasonData{Text: coordinator.Truncate(a.errs[i].Error(), coordinator.MaxFailing), Attempts: f.before[name] + attempt}))
	}
	return entries
}
