package twopc

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator changes transactions by hand. It needs no participants and owns no shard: the owner of
// the shard finds its records. It is safe for concurrent use. For transactions without a decision
// use [Engine.Settle].
//
// A change that the transaction's state does not allow is a [*StateError], and an id without
// a transaction an [ErrNone]; both are Definite.
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator returns an operator on a journal, and does not close it.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// Operator returns an operator on the engine's journal.
func (m *Engine) Operator() *Operator { return NewOperator(m.coordinator.Journal()) }

// List yields the transactions that match the filter, in the order of their keys; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry resumes a halted transaction. The operator has made sure that its calls do not crash again.
func (o *Operator) Retry(ctx context.Context, id string, by By) error {
	return o.act(ctx, "retry", id, by, func(m *machine) error {
		if m.halted == "" {
			return fmt.Errorf("it is %s, and not halted", m.state)
		}
		return nil
	}, record(recordRetry, "", by))
}

// Resolve ends a HEURISTIC transaction: an operator has corrected or accepted what the participants did
// against the decision. Branches that remain to be committed must be committed first.
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
