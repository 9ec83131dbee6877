package queue

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Channel is the one on which consumers that [Open] opened listen on PostgreSQL: for
// postgres.NewBell of programs that add.
const Channel = "interlock_queue_bell"

// Tx runs fn in a transaction, commits it if fn returns nil, and then rings the bell, so that
// consumers look at once for what was added. bell may be nil: they then look within a second. It
// returns the error of fn after a rollback; that of the commit is Uncertain if it may have been
// done. Nothing is retried.
func Tx[T any](ctx context.Context, db driver.Beginner[T], bell driver.Bell, fn func(ctx context.Context, tx T) error) error {
	worked := false
	err := transact.Do(ctx, db.Begin, "", func(tx driver.Tx[T]) error {
		err := tx.Classify(fn(ctx, tx.Native()))
		worked = err == nil
		return err
	})
	if bell != nil && worked && (err == nil || interlock.Kind(err) == interlock.Uncertain) {
		bell.Ring()
	}
	return err
}

// Finish removes a message from its queue in the user's transaction: in the database of the
// queue, so that the effects of a handler happen if and only if the message is done. It is the
// last statement of the transaction, because it keeps the claim from being renewed. If the claim
// is another consumer's by now the error is an interlock.ErrLost, and the transaction must be
// rolled back. The handler returns nil once the transaction is committed.
func Finish(ctx context.Context, db driver.SQL, m Received) error {
	claim, ok := m.Claim.(interface {
		Finish(ctx context.Context, db driver.SQL, place int64) (bool, error)
	})
	if ok {
		var err error
		if ok, err = claim.Finish(ctx, db, m.Place); ok {
			return err
		}
	}
	return failure.Bug("finish message", m.ID, "its queue is not in a database")
}

// InTx is a handler that runs fn in a transaction of the database of the queue, and finishes the
// message in it: its effects there happen once, over any crash.
func InTx[T any](db driver.Beginner[T], fn func(ctx context.Context, tx T, m Received) error) Handler {
	return func(ctx context.Context, m Received) error {
		err := transact.Do(ctx, db.Begin, m.ID, func(tx driver.Tx[T]) error {
			if err := tx.Classify(fn(ctx, tx.Native(), m)); err != nil {
				return err
			}
			return Finish(ctx, tx, m)
		})
		if interlock.Kind(err) == interlock.Uncertain {
			return Retry(0, err) // if it was committed the message is gone, and nothing is retried
		}
		return err
	}
}
