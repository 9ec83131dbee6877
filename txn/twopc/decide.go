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

// read is the transaction of an id or a key as the journal knows it; nil if it does
// not.
func (m *Engine) read(ctx context.Context, id string) (*machine, error) {
	t, err := stored(ctx, m.coordinator.Journal(), "read transaction", id)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	return &t.State, err
}

// stored is the transaction of an id or a key.
func stored(ctx context.Context, j *journal.Journal, op, id string) (coordinator.Transaction[machine], error) {
	t, err := records.Read(ctx, j, op, Key(id))
	if err == nil {
		err = t.State.is(id)
	}
	return t, err
}

// is reports that the transaction has another id with the same key.
func (m *machine) is(id string) error {
	if m.what.ID != "" && m.what.ID != id && Key(id) != id {
		return &MismatchError{ID: id, Problem: fmt.Sprintf("%q has the same key", m.what.ID)}
	}
	return nil
}

// presume is the transaction as the journal knows it; if it does not, the decision to
// abort is put there first, so that nobody commits any more.
func (m *Engine) presume(ctx context.Context, r run, abort decided) (*machine, error) {
	there, err := m.read(ctx, r.key)
	if err != nil || there != nil {
		return there, err
	}
	return m.put(ctx, r, decide(Abort, abort))
}

// put is the transaction with this decision, or with one that came before it.
func (m *Engine) put(ctx context.Context, r run, decision journal.Entry) (*machine, error) {
	err := m.coordinator.Begin(ctx, r.key, m.kind(), decision)
	switch {
	case errors.Is(err, journal.ErrExists):
		return m.first(ctx, r)
	case err != nil:
		return nil, err
	}
	there, err := replay([]journal.Entry{decision})
	if err == nil {
		m.decided(r, there.decision, there.what.Reason)
	}
	return &there, err
}

// first is the transaction whose decision came before ours.
func (m *Engine) first(ctx context.Context, r run) (*machine, error) {
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
// and is not in the journal the error is an [ErrNone]: it may have been deleted, and a person has
// to find out. After any other error call it again.
func (m *Engine) Decide(ctx context.Context, transaction string) (Decision, error) {
	const op = "decide transaction"
	r, err := parse(transaction)
	if err != nil {
		return "", bug(op, transaction, err)
	}
	if m.runs(r) {
		return "", &interlock.Error{Op: op, Name: transaction, Kind: interlock.Retryable, Err: errors.New("it is in progress")}
	}
	there, err := m.read(ctx, r.key)
	if err == nil && there == nil {
		if m.coordinator.Now().Sub(r.began) >= m.options.Retention {
			return "", definite(op, transaction, ErrNone)
		}
		there, err = m.presume(ctx, r, decided{Run: r.sign, Reason: "a participant has asked, and nobody had decided"})
	}
	if err != nil {
		return "", err
	}
	return there.of(r), nil
}

// runs reports whether a run is under way in this process.
func (m *Engine) runs(r run) bool {
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

// found makes a heuristic outcome of an abort durable, as far as that is possible: if
// the abort has ended in the journal, nothing stands behind it, and only the hook is
// told. Who drives it has nothing to do but to remind, so it is due no earlier.
func (m *Engine) found(ctx context.Context, r run, name string, why error) {
	_, err := m.coordinator.Journal().Begin(ctx, r.key, m.kind(), m.coordinator.Now().Add(m.options.Remind),
		decide(Abort, decided{Run: r.sign, Reason: "it was to be rolled back, and could not be"}), heuristic(name, why))
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

// Settle decides what nobody has decided: for a branch in doubt that is too old to be
// presumed aborted. transaction is its XID's. It does not overrule: if the journal has
// another decision, the error is an [ErrDecided]. A decision to commit covers the
// branches that are in doubt at this moment; all participants have to answer, and no run
// of it may be going on anywhere: the caller has made sure that no branch is
// missing. One that turns up later is committed all the same. The journal keeps by. The
// branches follow with the next scans.
func (m *Engine) Settle(ctx context.Context, transaction string, d Decision, by By) error {
	const op = "settle transaction"
	r, err := parse(transaction)
	switch {
	case err != nil:
		return bug(op, transaction, err)
	case d != Commit && d != Abort:
		return failure.Bug(op, transaction, "the decision %q is neither commit nor abort", d)
	case m.runs(r):
		return failure.Bug(op, transaction, "it is under way in this process")
	}
	if err := by.Check(op, transaction); err != nil {
		return err
	}
	there, err := m.read(ctx, r.key)
	if err == nil && there == nil {
		there, err = m.impose(ctx, r, d, decided{Run: r.sign, Actor: by.Actor, Reason: by.Reason})
	}
	if err == nil && there.of(r) != d {
		err = definite(op, transaction, ErrDecided)
	}
	return err
}

// impose is the transaction with a person's decision, or with one that came before it.
func (m *Engine) impose(ctx context.Context, r run, d Decision, what decided) (there *machine, err error) {
	if d == Commit {
		if what.Branches, err = m.waiting(ctx, r); err != nil {
			return nil, err
		}
	}
	return m.put(ctx, r, decide(d, what))
}

// waiting are the participants that have a branch of the run in doubt.
func (m *Engine) waiting(ctx context.Context, r run) ([]string, error) {
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
