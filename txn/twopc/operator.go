package twopc

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator changes transactions by hand. It needs no participants and owns no shard: what
// it writes is found by the owner of the shard. It is safe for concurrent use. What nobody
// has decided is decided by [Engine.Settle].
//
// A change that the transaction's state does not allow is a [*StateError], and an id without
// a transaction an [ErrNone], both Definite.
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator makes an operator on a journal, which stays open.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// Operator returns an operator on the engine's journal.
func (m *Engine) Operator() *Operator { return NewOperator(m.coordinator.Journal()) }

// List goes through the transactions that pass in the order of their keys; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry has a halted transaction go on: its participants will not crash their caller again.
func (o *Operator) Retry(ctx context.Context, id string, by By) error {
	return o.act(ctx, "retry", id, by, func(m *machine) error {
		if m.halted == "" {
			return fmt.Errorf("it is %s, and not halted", m.state)
		}
		return nil
	}, record(recordRetry, "", by))
}

// Resolve ends a HEURISTIC transaction: a person has put right what the participants did
// against the decision, or lives with it. Branches that are still to be committed have to
// be committed first.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, by, func(m *machine) error {
		if !m.settled() {
			return fmt.Errorf("it is %s, with %d branches left: there is nothing to resolve", m.state, len(m.left()))
		}
		return nil
	}, record(recordResolved, "", by), end())
}

func (o *Operator) act(ctx context.Context, op, id string, by By, refuses func(*machine) error, entries ...journal.Entry) error {
	if err := by.Check(op, id); err != nil {
		return err
	}
	return records.Change(ctx, o.journal, o.now, op, Key(id), "", func(t coordinator.Transaction[machine]) ([]journal.Entry, error) {
		if err := t.State.checkID(id); err != nil {
			return nil, err
		}
		return entries, refuses(&t.State)
	})
}
