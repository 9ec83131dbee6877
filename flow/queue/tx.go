package queue

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Channel is the one on which consumers that [Open] opened listen on PostgreSQL: for
// postgres.NewNotifier of programs that add.
const Channel = "interlock_queue"

// Tx runs fn in a transaction, commits it if fn returns nil, and then notifies, so that
// consumers look at once for what was added. notifier may be nil: they then look within a second. It
// returns the error of fn after a rollback; that of the commit is Uncertain if it may have been
// done. Nothing is retried.
func Tx[T any](ctx context.Context, db driver.Beginner[T], notifier driver.Notifier, fn func(ctx context.Context, tx T) error) error {
	worked := false
	err := transact.Do(ctx, db.Begin, "", func(tx driver.Tx[T]) error {
		err := tx.Classify(fn(ctx, tx.Native()))
		worked = err == nil
		return err
	})
	if notifier != nil && worked && (err == nil || interlock.Kind(err) == interlock.Uncertain) {
		notifier.Notify()
	}
	return err
}

// Finish removes messages from their queue in the user's transaction: in the database of the
// queue, so that the effects of a handler happen if and only if the messages are done. It is the
// last statement of the transaction, because it keeps their claims from being renewed. If a claim
// is another consumer's by now the error is an interlock.ErrLost, and the transaction must be
// rolled back. The handler returns nil once the transaction is committed.
func Finish(ctx context.Context, db driver.SQL, all ...Received) error {
	if len(all) == 0 {
		return nil
	}
	ok, err := leasequeue.Finish(ctx, db, all)
	if !ok {
		return failure.Bug("finish message", all[0].ID, "its queue is not in a database")
	}
	return err
}

// InTx is a handler that runs fn in a transaction of the database of the queue, and finishes the
// message in it: its effects there happen once, over any crash.
func InTx[T any](db driver.Beginner[T], fn func(ctx context.Context, tx T, m Received) error) Handler {
	return func(ctx context.Context, m Received) error {
		return finishIn(ctx, db, []Received{m}, func(tx T) error { return fn(ctx, tx, m) })
	}
}

// InTxBatch is [InTx] for many messages in one transaction, gathered by [Batch]. It is several
// times as fast if fn makes small effects, best by statements of many rows. fn does nothing
// else: locks that it takes last until the effects of all messages are committed.
func InTxBatch[T any](db driver.Beginner[T], fn func(ctx context.Context, tx T, all []Received) error) Handler {
	return Batch(func(ctx context.Context, all []Received) error {
		return finishIn(ctx, db, all, func(tx T) error { return fn(ctx, tx, all) })
	})
}

// finishIn runs work and finishes messages in one transaction. If nobody knows whether it was
// committed all are delivered again: if it was, they are gone, and nothing is delivered.
func finishIn[T any](ctx context.Context, db driver.Beginner[T], all []Received, work func(tx T) error) error {
	finished := false
	err := transact.Do(ctx, db.Begin, all[0].ID, func(tx driver.Tx[T]) error {
		err := tx.Classify(work(tx.Native()))
		if err == nil {
			err = Finish(ctx, tx, all...)
		}
		finished = err == nil
		return err
	})
	if finished && interlock.Kind(err) == interlock.Uncertain {
		return &outcome{Outcome: driver.Retry, err: err, whole: true}
	}
	return err
}
