package twopc

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock/internal/failure"
)

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
