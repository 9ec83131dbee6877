package twopc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Run calls work, which opens branches at several participants, and commits all branches or none. id
// has 1 to driver.MaxTransaction bytes. If it is already committed, Run returns nil without calling
// work. Of concurrent runs of one id at most one is committed. Run blocks
// until the decision is durable; [Engine.Wait] waits until all participants have committed.
//
// The error is nil if the transaction was committed, by this run or another one, or changed nothing.
// Otherwise it is:
//
//   - an [*AbortedError] if this run had no effect. It is Retryable after a deadlock and similar
//     errors; Run does not repeat work
//   - Uncertain if the journal did not answer the decision, or a single participant its commit. In
//     the first case [Engine.Look] returns the decision once the journal answers
//   - Retryable if the journal did not answer before any work was done
//
// A panic of work aborts the transaction and continues in the caller. If ctx ends before the decision
// is sent, the transaction is aborted.
func (m *Engine) Run(ctx context.Context, id string, work func(ctx context.Context, t *T) error) error {
	const op = "run transaction"
	if err := driver.CheckTransaction(op, id); err != nil {
		return err
	}
	if work == nil {
		return failure.Bug(op, id, "there is no function to run")
	}
	if recorded, err := m.read(ctx, id); err != nil || recorded != nil {
		return m.outcomeOfOther(id, recorded, readFailed(op, id, err))
	}
	t := &T{engine: m, run: begin(id, m.coordinator.Now(), m.random())}
	defer m.markRunning(t.run)()
	if err := m.runWork(ctx, t, work); err != nil {
		return m.aborted(id, t.run, err)
	}
	branches := t.close()
	if len(branches) == 1 {
		return m.commitOne(ctx, id, t.run, branches[0])
	}
	return m.commitAll(ctx, id, t.run, branches)
}

// aborted returns the error of a run that aborts without a record.
func (m *Engine) aborted(id string, r run, why error) error {
	m.decided(r, Abort, why.Error())
	return &AbortedError{ID: id, Reason: why}
}

// outcomeOfOther returns the outcome of another run.
func (m *Engine) outcomeOfOther(id string, recorded *machine, err error) error {
	if err != nil || recorded.decision == Commit {
		return err
	}
	return &AbortedError{ID: id, Reason: errors.New(recorded.data.Reason), Recorded: true}
}

// readFailed returns the error of a run that could not read the outcome of another run and did nothing.
func readFailed(op, id string, err error) error {
	if err == nil || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Retryable, Err: fmt.Errorf("nothing was done: %w", err)}
}

// runWork runs the function. If it fails or panics, its branches are abandoned.
func (m *Engine) runWork(ctx context.Context, t *T, work func(context.Context, *T) error) (err error) {
	kept := false
	defer func() {
		if !kept {
			m.abandon(ctx, t.close())
		}
	}()
	if err = work(ctx, t); err == nil {
		err = context.Cause(ctx)
	}
	kept = err == nil
	return err
}

// abandon releases branches that are not prepared. An error is ignored: the end of the session does
// the same.
func (m *Engine) abandon(ctx context.Context, branches []*openBranch) {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, b := range branches {
		all.Go(func() { _ = coordinator.CatchPanic(ctx, b.preparing.Abandon) })
	}
	all.Wait()
}

// commitOne commits a transaction with one participant.
func (m *Engine) commitOne(ctx context.Context, id string, r run, b *openBranch) error {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	err := coordinator.CatchPanic(ctx, b.preparing.CommitOne)
	if err == nil {
		return nil
	}
	m.abandon(ctx, []*openBranch{b})
	if interlock.Kind(err) == interlock.Uncertain {
		return uncertain("commit transaction", id, err)
	}
	return m.aborted(id, r, err)
}

// commitAll runs the first phase, and decides.
func (m *Engine) commitAll(ctx context.Context, id string, r run, branches []*openBranch) error {
	t := countVotes(m.prepare(ctx, r, branches))
	if t.abortReason == nil {
		t.abortReason = context.Cause(ctx)
	}
	if t.abortReason != nil {
		m.rollBack(ctx, r, slices.Concat(t.yes, t.unclear))
		return m.aborted(id, r, t.abortReason)
	}
	if len(t.yes) == 0 {
		return nil
	}
	return m.commit(ctx, id, r, t.yes)
}

// prepare asks all participants for their votes concurrently. A branch without a vote is abandoned.
func (m *Engine) prepare(ctx context.Context, r run, branches []*openBranch) []ballot {
	ctx, cancel := context.WithTimeout(ctx, m.options.Prepare)
	defer cancel()
	ballots := make([]ballot, len(branches))
	var all sync.WaitGroup
	for i, b := range branches {
		ballots[i] = ballot{name: b.name, err: failure.ErrNoReturn}
		all.Go(func() {
			err := coordinator.CatchPanic(withCall(ctx, 1, r, b.name, branch.Prepare), func(ctx context.Context) (err error) {
				ballots[i].vote, err = b.preparing.Prepare(ctx)
				return err
			})
			if ballots[i].err = err; err != nil {
				m.abandon(ctx, []*openBranch{b})
			}
		})
	}
	all.Wait()
	return ballots
}

// call commits or rolls back a branch. A panic of the participant is an error of unknown outcome.
func (m *Engine) call(ctx context.Context, attempt int, r run, name string, op branch.Operation) error {
	do := m.participants[name].Rollback
	if op == branch.Commit {
		do = m.participants[name].Commit
	}
	return coordinator.CatchPanic(withCall(ctx, attempt, r, name, op), func(ctx context.Context) error { return do(ctx, r.xid(name)) })
}

// withCall returns a context with the call, for participants in other processes. It replaces the call
// of another transaction in ctx.
func withCall(ctx context.Context, attempt int, r run, name string, op branch.Operation) context.Context {
	deadline, _ := ctx.Deadline()
	return branch.With(ctx, branch.Call{Transaction: r.String(), Branch: name, Operation: op, Attempt: attempt, Begun: r.began, Deadline: deadline})
}

// commit records the decision. If the outcome of the append is unknown, it tries to record an abort, and
// follows the decision in the journal.
func (m *Engine) commit(ctx context.Context, id string, r run, yes []string) error {
	ctx = context.WithoutCancel(ctx) // the journal has its own bound
	err := m.coordinator.Begin(ctx, r.key, m.kind(), decide(Commit, decideData{ID: id, Run: r.sign, Branches: yes}))
	if err == nil {
		m.decided(r, Commit, "")
		return nil
	}
	clean, cancel := m.clean(ctx)
	defer cancel()
	recorded, late := m.readOrAbort(clean, r, decideData{ID: id, Run: r.sign, Reason: truncated("the decision to commit was not answered: " + err.Error())})
	switch {
	case late != nil:
		return uncertain("decide transaction", id, errors.Join(err, late))
	case recorded.decisionFor(r) == Commit:
		m.decided(r, Commit, "")
		return nil
	}
	m.rollBack(ctx, r, yes)
	return m.outcomeOfOther(id, recorded, nil)
}

// rollBack rolls branches back, within a bound. Branches that it does not reach are found in doubt later.
func (m *Engine) rollBack(ctx context.Context, r run, names []string) {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { m.rollBackOne(ctx, r, name) })
	}
	all.Wait()
}

func (m *Engine) rollBackOne(ctx context.Context, r run, name string) {
	for attempt := 1; ; attempt++ {
		err := m.call(ctx, attempt, r, name, branch.Rollback)
		if err == nil {
			return
		}
		if errors.Is(err, driver.ErrHeuristic) {
			m.recordHeuristicAbort(ctx, r, name, err)
			return
		}
		_, after := branch.ClassOf(err)
		wait := coordinator.Delay(pause.First, pause.Max, branch.ClassUnknown, after, attempt, m.coordinator.Random())
		if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(deadline) < wait {
			wait = 0
		}
		coordinator.Emit(m.options.Hooks.Tried, observe.TwoPCTried{Transaction: r.String(), Participant: name, Attempt: attempt, Err: err, Again: wait})
		if wait == 0 || !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// read returns the transaction of an id or a key, or nil if the journal has none.
func (m *Engine) read(ctx context.Context, id string) (*machine, error) {
	t, err := stored(ctx, m.coordinator.Journal(), "read transaction", id)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	return &t.State, err
}

// stored returns the transaction of an id or a key.
func stored(ctx context.Context, j *journal.Journal, op, id string) (coordinator.Transaction[machine], error) {
	t, err := records.Read(ctx, j, op, Key(id))
	if err == nil {
		err = t.State.checkID(id)
	}
	return t, err
}

// checkID returns an error if the transaction has another id with the same key.
func (m *machine) checkID(id string) error {
	if m.data.ID != "" && m.data.ID != id && Key(id) != id {
		return &MismatchError{ID: id, Problem: fmt.Sprintf("%q has the same key", m.data.ID)}
	}
	return nil
}

// readOrAbort returns the transaction of a run. If the journal has none, it records an abort first, so
// that no process can commit.
func (m *Engine) readOrAbort(ctx context.Context, r run, abort decideData) (*machine, error) {
	recorded, err := m.read(ctx, r.key)
	if err != nil || recorded != nil {
		return recorded, err
	}
	return m.recordDecision(ctx, r, decide(Abort, abort))
}

// recordDecision records a decision, and returns the transaction with it or with an earlier one.
func (m *Engine) recordDecision(ctx context.Context, r run, decision journal.Entry) (*machine, error) {
	err := m.coordinator.Begin(ctx, r.key, m.kind(), decision)
	switch {
	case errors.Is(err, journal.ErrExists):
		return m.readEarlier(ctx, r)
	case err != nil:
		return nil, err
	}
	recorded, err := replay([]journal.Entry{decision})
	if err == nil {
		m.decided(r, recorded.decision, recorded.data.Reason)
	}
	return &recorded, err
}

// readEarlier returns the transaction that was decided before.
func (m *Engine) readEarlier(ctx context.Context, r run) (*machine, error) {
	recorded, err := m.read(ctx, r.key)
	if err == nil && recorded == nil {
		err = &interlock.Error{Op: "decide transaction", Name: r.key, Kind: interlock.Retryable,
			Err: errors.New("the retention of the journal is so short that it would delete the decision at once")}
	}
	return recorded, err
}

// Decide returns the outcome of a transaction to a participant that has voted yes and received
// nothing. transaction is that of the branch's XID. If there is no decision, Decide aborts the
// transaction, durably, before it returns: call it after Options.Patience at the earliest. While
// this process runs the transaction the error is Retryable. If it began before Options.Retention
// and is not in the journal the error is an [ErrNone]: it may have been deleted, and an operator
// must decide. After any other error call it again.
func (m *Engine) Decide(ctx context.Context, transaction string) (Decision, error) {
	const op = "decide transaction"
	r, err := parse(transaction)
	if err != nil {
		return "", bug(op, transaction, err)
	}
	if m.isRunning(r) {
		return "", &interlock.Error{Op: op, Name: transaction, Kind: interlock.Retryable, Err: errors.New("it is in progress")}
	}
	recorded, err := m.read(ctx, r.key)
	if err == nil && recorded == nil {
		if m.coordinator.Now().Sub(r.began) >= m.options.Retention {
			return "", definite(op, transaction, ErrNone)
		}
		recorded, err = m.readOrAbort(ctx, r, decideData{Run: r.sign, Reason: "a participant asked, and there was no decision"})
	}
	if err != nil {
		return "", err
	}
	return recorded.decisionFor(r), nil
}

// isRunning reports whether a run is in progress in this process.
func (m *Engine) isRunning(r run) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running[r.String()] > 0
}

func (m *Engine) decided(r run, d Decision, reason string) {
	coordinator.Emit(m.options.Hooks.Decided, observe.TwoPCDecided{Transaction: r.String(), Commit: d == Commit, Reason: reason})
}

// recordHeuristicAbort records a branch that an abort could not roll back. If the abort has ended, it
// takes no further records, and only the hook is called. The transaction is due at the next reminder.
func (m *Engine) recordHeuristicAbort(ctx context.Context, r run, name string, why error) {
	_, err := m.coordinator.Journal().Begin(ctx, r.key, m.kind(), m.coordinator.Now().Add(m.options.Remind),
		decide(Abort, decideData{Run: r.sign, Reason: "it was to be rolled back, and could not be"}), heuristic(name, why))
	if errors.Is(err, journal.ErrExists) {
		err = nil
	}
	coordinator.Emit(m.options.Hooks.Heuristic, observe.TwoPCHeuristic{Transaction: r.String(), Participants: []string{name}, Err: errors.Join(why, err)})
}

// Settle decides a transaction without a decision, whose branches in doubt are too old for a presumed
// abort. transaction is that of their XID. If the journal has another decision, the error is an
// [ErrDecided]. A decision to commit covers the branches that are in doubt at this moment: all
// participants must answer, and no process may still run the transaction. The caller has checked
// that no branch is missing; a branch that appears later is committed too. The journal stores by. The
// next scans finish the branches.
func (m *Engine) Settle(ctx context.Context, transaction string, d Decision, by By) error {
	const op = "settle transaction"
	r, err := parse(transaction)
	switch {
	case err != nil:
		return bug(op, transaction, err)
	case d != Commit && d != Abort:
		return failure.Bug(op, transaction, "the decision %q is neither commit nor abort", d)
	case m.isRunning(r):
		return failure.Bug(op, transaction, "it is under way in this process")
	}
	if err := by.Check(op, transaction); err != nil {
		return err
	}
	recorded, err := m.read(ctx, r.key)
	if err == nil && recorded == nil {
		recorded, err = m.settleAs(ctx, r, d, decideData{Run: r.sign, Actor: by.Actor, Reason: by.Reason})
	}
	if err == nil && recorded.decisionFor(r) != d {
		err = definite(op, transaction, ErrDecided)
	}
	return err
}

// settleAs returns the transaction with an operator's decision, or with an earlier one.
func (m *Engine) settleAs(ctx context.Context, r run, d Decision, data decideData) (recorded *machine, err error) {
	if d == Commit {
		if data.Branches, err = m.inDoubtOf(ctx, r); err != nil {
			return nil, err
		}
	}
	return m.recordDecision(ctx, r, decide(d, data))
}

// inDoubtOf returns the participants that have a branch of the run in doubt.
func (m *Engine) inDoubtOf(ctx context.Context, r run) ([]string, error) {
	found, err := m.InDoubt(ctx)
	if err != nil {
		return nil, fmt.Errorf("some participants did not answer: %w", err)
	}
	var names []string
	for _, d := range found {
		if d.XID.Transaction == r.String() && m.participants[d.XID.Branch] != nil {
			names = append(names, d.XID.Branch)
		}
	}
	if len(names) == 0 {
		return nil, definite("settle transaction", r.String(), errors.New("no participant has a branch of it in doubt"))
	}
	return names, nil
}
