package twopc

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
)

// Watch scans at once and then every Options.Scan, until ctx ends, and returns the
// cause. A txn.Runtime runs it. Otherwise run it in every process with participants; several scans
// may run concurrently.
func (m *Engine) Watch(ctx context.Context) error {
	for {
		m.Scan(ctx)
		jitter := 0.9 + 0.2*m.coordinator.Random()
		if !backoff.Sleep(ctx, time.Duration(min(float64(m.options.Scan)*jitter, 1<<62))) {
			return context.Cause(ctx)
		}
	}
}

// Scan lists the branches in doubt of each participant once, and finishes those that are decided. A
// transaction without a decision for longer than Options.Patience is aborted, in the journal first.
// Errors are reported to the hooks; the next scan tries again.
func (m *Engine) Scan(ctx context.Context) {
	var all sync.WaitGroup
	for name := range m.participants {
		all.Go(func() {
			found, err := m.inspect(ctx, name)
			if err == nil || ctx.Err() == nil { // the end of ctx says nothing about the participant
				m.gauge(name, found, err)
			}
			acting, cancel := context.WithTimeout(ctx, max(m.options.Timeout, m.options.Scan))
			defer cancel()
			for _, d := range found {
				v, err := m.finish(acting, name, d)
				if v != leave && (err == nil || ctx.Err() == nil) {
					coordinator.Emit(m.options.Hooks.Orphan, observe.TwoPCOrphan{Transaction: d.XID.Transaction, Participant: name, Age: d.Age, Verdict: string(v), Err: err})
				}
			}
		})
	}
	all.Wait()
}

// finish executes a verdict.
func (m *Engine) finish(ctx context.Context, name string, found InDoubt) (v verdict, err error) {
	v, err = verdict(found.Verdict), found.Err
	if v == presume {
		v, err = m.presumeAbort(ctx, found)
	}
	if err == nil {
		err = m.carryOut(ctx, name, found, v)
	}
	return v, err
}

// presumeAbort records an abort and returns the next verdict, which follows an earlier decision.
func (m *Engine) presumeAbort(ctx context.Context, found InDoubt) (verdict, error) {
	recorded, err := m.readOrAbort(ctx, found.run, decideData{Run: found.run.sign,
		Reason: "branch " + found.XID.Branch + " was in doubt for " + found.Age.Round(time.Millisecond).String() + ", and there was no decision"})
	if err != nil {
		return blocked, err
	}
	return m.judge(found, recorded), nil
}

// carryOut commits or rolls back a branch.
func (m *Engine) carryOut(ctx context.Context, name string, found InDoubt, v verdict) error {
	if v != commit && v != rollBack {
		return nil
	}
	ctx, cancel := coordinator.WithTimeout(ctx, m.options.Timeout)
	defer cancel()
	if v == commit {
		return m.call(ctx, 1, found.run, name, branch.Commit)
	}
	err := m.call(ctx, 1, found.run, name, branch.Rollback)
	if errors.Is(err, driver.ErrHeuristic) {
		m.recordHeuristicAbort(ctx, found.run, name, err)
	}
	return err
}

// gauge reports the state of a participant.
func (m *Engine) gauge(name string, found []InDoubt, err error) {
	e := observe.TwoPCScanned{Participant: name, InDoubt: len(found), Err: err}
	for _, d := range found {
		e.Oldest = max(e.Oldest, d.Age)
		if d.Verdict == string(blocked) {
			e.Blocked++
			e.BlockedFor = max(e.BlockedFor, d.BlockedFor)
		}
	}
	coordinator.Emit(m.options.Hooks.Scanned, e)
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
	decision := decide(d, data)
	return m.decidedAs(ctx, r, decision, m.coordinator.Begin(ctx, r.key, m.kind(), decision))
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

// An InDoubt is a branch in doubt that a scan has found.
type InDoubt struct {
	XID driver.XID
	// Age is the time since it was prepared, by the participant's clock, or since this engine
	// found it, whichever is longer.
	Age time.Duration
	// Verdict is the action according to the journal: "commit", "roll back", "decide to
	// abort", or "leave" while a process may work on it. It is "blocked" while the journal
	// does not answer. "too old" and "foreign" wait for an operator, see [Engine.Settle].
	Verdict    string
	BlockedFor time.Duration // since the journal did not answer; 0 if it answers
	Err        error         // of the journal, if it is blocked or foreign

	run run // empty if foreign
}

// scan is the state between scans.
type scan struct {
	seen    map[branchAt]time.Time // when first seen
	blocked map[branchAt]time.Time // since when
}

// branchAt is a branch at the participant that lists it.
type branchAt struct {
	participant string
	xid         driver.XID
}

// InDoubt lists the branches in doubt at all participants, in the order of their names, with what
// an [Engine.Scan] would do. It changes nothing. The error joins those of participants that could
// not be asked; the branches of the others are listed.
func (m *Engine) InDoubt(ctx context.Context) ([]InDoubt, error) {
	var all []InDoubt
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.participants)) {
		found, err := m.inspect(ctx, name)
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// inspect lists what one participant has in doubt, with verdicts.
func (m *Engine) inspect(ctx context.Context, name string) ([]InDoubt, error) {
	listing, cancel := coordinator.WithTimeout(ctx, m.options.Timeout)
	defer cancel()
	var doubts []driver.InDoubt
	err := coordinator.Call(listing, func(ctx context.Context) (err error) {
		doubts, err = m.participants[name].InDoubt(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var found []InDoubt
	read := m.reader(ctx)
	for _, d := range doubts {
		if d.XID.Branch != name && m.participants[d.XID.Branch] != nil {
			continue // two names of one namespace: the other one finds it
		}
		found = append(found, m.look(read, name, d))
	}
	m.forget(name, found)
	return found, nil
}

// reader returns a function that reads transactions, each within a bound. After one failure it does not
// try again, so that a scan waits once for a journal that does not answer.
func (m *Engine) reader(ctx context.Context) func(key string) (*machine, error) {
	var gone error
	return func(key string) (*machine, error) {
		if gone != nil {
			return nil, gone
		}
		reading, cancel := context.WithTimeout(ctx, m.options.Timeout)
		defer cancel()
		recorded, err := m.read(reading, key)
		if err != nil && interlock.Kind(err) != interlock.Bug {
			gone = err
		}
		return recorded, err
	}
}

// look determines the verdict of one branch.
func (m *Engine) look(read func(key string) (*machine, error), name string, d driver.InDoubt) InDoubt {
	now, at := m.coordinator.Now(), branchAt{name, d.XID}
	found := InDoubt{XID: d.XID, Age: now.Sub(m.firstNoted(m.scan.seen, at, now))}
	if !d.Since.IsZero() {
		found.Age = max(found.Age, now.Sub(d.Since))
	}
	r, err := parse(d.XID.Transaction)
	if err != nil || d.XID.Branch != name {
		found.Verdict, found.Err = string(foreign), err
		return found
	}
	found.run = r
	recorded, err := read(r.key)
	if errors.Is(err, ErrMismatch) {
		found.Verdict, found.Err = string(foreign), err
		return found
	}
	if err != nil {
		found.Verdict, found.Err = string(blocked), err
		found.BlockedFor = now.Sub(m.firstNoted(m.scan.blocked, at, now))
		return found
	}
	m.unblock(at)
	found.Verdict = string(m.judge(found, recorded))
	return found
}

// judge returns the verdict of a branch that was found.
func (m *Engine) judge(found InDoubt, recorded *machine) verdict {
	r := found.run
	d := inDoubtBranch{run: r, branch: found.XID.Branch, age: found.Age, runAge: m.coordinator.Now().Sub(r.began), running: m.isRunning(r)}
	return d.judge(recorded, m.options)
}

// firstNoted returns when a branch was first noted.
func (m *Engine) firstNoted(notes map[branchAt]time.Time, p branchAt, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, before := notes[p]
	if !before {
		at = now
		notes[p] = now
	}
	return at
}

func (m *Engine) unblock(p branchAt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.scan.blocked, p)
}

// forget removes notes of a participant's branches that are no longer in doubt.
func (m *Engine) forget(name string, found []InDoubt) {
	present := map[branchAt]bool{}
	for _, d := range found {
		present[branchAt{name, d.XID}] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, notes := range []map[branchAt]time.Time{m.scan.seen, m.scan.blocked} {
		maps.DeleteFunc(notes, func(p branchAt, _ time.Time) bool { return p.participant == name && !present[p] })
	}
}
