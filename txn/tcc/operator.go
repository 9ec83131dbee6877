package tcc

import (
	"context"
	"iter"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator changes transactions by hand. It needs no resources, and owns no shard: what
// it writes is found by the owner of the shard. It is safe for concurrent use.
//
// A change that the transaction's state does not allow is a [*StateError], and an id without
// a transaction an [ErrNone], both Definite. After an Uncertain error look whether it is
// written.
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator makes an operator on a journal, which stays open.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// Operator returns an operator on the engine's journal.
func (m *Engine) Operator() *Operator { return NewOperator(m.coordinator.Journal()) }

// List goes through the transactions that pass in the order of their ids; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry has a dead branch called again, or all that are dead if branch is empty. One
// that is waiting is called now.
func (o *Operator) Retry(ctx context.Context, id, branch string, by By) error {
	return o.act(ctx, "retry", id, branch, by, coordinator.Record(recordRetry, branch, by))
}

// Skip takes a branch for settled that is not: it is not called any more. The operator has
// settled it by hand.
func (o *Operator) Skip(ctx context.Context, id, branch string, by By) error {
	if branch == "" {
		return failure.Bug("skip", id, "no branch is named")
	}
	return o.act(ctx, "skip", id, branch, by, coordinator.Record(recordSkip, branch, by))
}

// Resolve ends a dead letter as it is.
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
