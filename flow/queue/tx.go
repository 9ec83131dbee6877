package queue

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Channel is the PostgreSQL channel on which consumers of [Open] listen. Pass it to
// postgres.NewNotifier in programs that add messages.
const Channel = "interlock_queue_notifier"

// Tx runs fn in a transaction, commits it if fn returns nil, and then notifies, so that consumers
// look for messages at once. Without a notifier they find them within a second. Tx returns the error
// of fn after a rollback. The error of a commit that may have been done is Uncertain. Tx does not
// retry.
func Tx[T any](ctx context.Context, db driver.Beginner[T], notifier driver.Notifier, fn func(ctx context.Context, tx T) error) error {
	return transact.Notify(ctx, db, notifier, fn)
}

// Finish removes messages from their queue in the user's transaction, in the database of the queue:
// the effects of the handler happen if and only if the messages are done. Make it the last statement
// of the transaction, because it prevents the renewal of the claims. If another consumer has a
// claim by now, the error is an interlock.ErrLost, and the transaction must be rolled back. The
// handler returns nil after the commit.
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

// InTx returns a handler that runs fn in a transaction of the database of the queue and finishes the
// message in it: effects of fn there happen exactly once, even after a crash.
func InTx[T any](db driver.Beginner[T], fn func(ctx context.Context, tx T, m Received) error) Handler {
	return func(ctx context.Context, m Received) error {
		return finishIn(ctx, db, []Received{m}, func(tx T) error { return fn(ctx, tx, m) })
	}
}

// InTxBatch is [InTx] for many messages in one transaction, gathered by [Batch]. It is several times
// as fast if the effects are small; best are statements of many rows. Locks of fn last until the
// effects of all messages are committed, so fn should do nothing else.
func InTxBatch[T any](db driver.Beginner[T], fn func(ctx context.Context, tx T, all []Received) error) Handler {
	return Batch(func(ctx context.Context, all []Received) error {
		return finishIn(ctx, db, all, func(tx T) error { return fn(ctx, tx, all) })
	})
}

// finishIn runs work and finishes messages in one transaction. If the outcome of the commit is
// unknown, all are retried: if it was done, they are gone and not delivered again.
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
