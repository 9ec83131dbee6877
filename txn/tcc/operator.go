package tcc

import (
	"context"
	"iter"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator changes transactions by hand. It needs no resources, and owns no shard: the owner of
// the shard finds its records. It is safe for concurrent use.
//
// A change that the transaction's state does not allow is a [*StateError], and an id without
// a transaction an [ErrNone]; both are Definite. After an Uncertain error look whether the change is
// recorded.
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator returns an operator on a journal, and does not close it.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// Operator returns an operator on the engine's journal.
func (m *Engine) Operator() *Operator { return NewOperator(m.coordinator.Journal()) }

// List yields the transactions that match the filter, in the order of their ids; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry makes the owner call a dead branch again, or all dead branches if branch is empty. A branch
// that waits for its next call is called now.
func (o *Operator) Retry(ctx context.Context, id, branch string, by By) error {
	return o.act(ctx, "retry", id, branch, by, coordinator.Record(recordRetry, branch, by))
}

// Skip records that an operator has settled a branch by hand. It is not called again.
func (o *Operator) Skip(ctx context.Context, id, branch string, by By) error {
	if branch == "" {
		return failure.Bug("skip", id, "no branch is named")
	}
	return o.act(ctx, "skip", id, branch, by, coordinator.Record(recordSkip, branch, by))
}

// Resolve ends a dead letter without further calls.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, "", by, coordinator.Record(recordResolved, "", by), journal.Entry{Kind: recordEnd})
}

func (o *Operator) act(ctx context.Context, op, id, branch string, by By, entries ...journal.Entry) error {
	if err := by.Check(op, id); err != nil {
		return err
	}
	return records.Change(ctx, o.journal, o.now, op, id, branch, func(coordinator.Transaction[machine]) ([]journal.Entry, error) {
		return entries, nil
	})
}
