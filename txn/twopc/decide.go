package twopc

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
	there, err := m.read(ctx, r.key)
	if err != nil || there != nil {
		return there, err
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
	there, err := replay([]journal.Entry{decision})
	if err == nil {
		m.decided(r, there.decision, there.data.Reason)
	}
	return &there, err
}

// readEarlier returns the transaction that was decided before.
func (m *Engine) readEarlier(ctx context.Context, r run) (*machine, error) {
	there, err := m.read(ctx, r.key)
	if err == nil && there == nil {
		err = &interlock.Error{Op: "decide transaction", Name: r.key, Kind: interlock.Retryable,
			Err: errors.New("the retention of the journal is so short that it would delete the decision at once")}
	}
	return there, err
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
	there, err := m.read(ctx, r.key)
	if err == nil && there == nil {
		if m.coordinator.Now().Sub(r.began) >= m.options.Retention {
			return "", definite(op, transaction, ErrNone)
		}
		there, err = m.readOrAbort(ctx, r, decideData{Run: r.sign, Reason: "a participant has asked, and nobody had decided"})
	}
	if err != nil {
		return "", err
	}
	return there.decisionFor(r), nil
}

// isRunning reports whether a run is in progress in this process.
func (m *Engine) isRunning(r run) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running[r.String()] > 0
}

func (m *Engine) decided(r run, d Decision, reason string) {
	if f := m.options.Hooks.Decided; f != nil {
		f(observe.TwoPCDecided{Transaction: r.String(), Commit: d == Commit, Reason: reason})
	}
}

func (m *Engine) tried(e observe.TwoPCTried) {
	if f := m.options.Hooks.Tried; f != nil {
		f(e)
	}
}

// recordHeuristicAbort records a branch that an abort could not roll back. If the abort has ended, it
// takes no further records, and only the hook is called. The transaction is due at the next reminder.
func (m *Engine) recordHeuristicAbort(ctx context.Context, r run, name string, why error) {
	_, err := m.coordinator.Journal().Begin(ctx, r.key, m.kind(), m.coordinator.Now().Add(m.options.Remind),
		decide(Abort, decideData{Run: r.sign, Reason: "it was to be rolled back, and could not be"}), heuristic(name, why))
	if errors.Is(err, journal.ErrExists) {
		err = nil
	}
	m.heuristic(observe.TwoPCHeuristic{Transaction: r.String(), Participants: []string{name}, Err: errors.Join(why, err)})
}

func (m *Engine) heuristic(e observe.TwoPCHeuristic) {
	if f := m.options.Hooks.Heuristic; f != nil {
		f(e)
	}
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
	there, err := m.read(ctx, r.key)
	if err == nil && there == nil {
		there, err = m.settleAs(ctx, r, d, decideData{Run: r.sign, Actor: by.Actor, Reason: by.Reason})
	}
	if err == nil && there.decisionFor(r) != d {
		err = definite(op, transaction, ErrDecided)
	}
	return err
}

// settleAs returns the transaction with an operator's decision, or with an earlier one.
func (m *Engine) settleAs(ctx context.Context, r run, d Decision, data decideData) (there *machine, err error) {
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
