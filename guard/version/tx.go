package version

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Tx runs fn in a transaction of its own and commits it, and does so again, in
// another transaction, if there was a conflict: fn returned [ErrConflict], because
// a conditional UPDATE of its own found no row, or the database undid the
// transaction for the sake of others (a serialization failure, a deadlock, a lock
// that was not to be had). name tells hooks and errors what is updated.
//
// fn may run several times, and must not end the transaction. What it does
// outside of it is done each time. Tx returns nil if the transaction was
// committed. Otherwise:
//
//   - a [ConflictError], or what Options.HandOff returned: nothing was done;
//   - another Retryable error: nothing was done, for reasons such as a connection
//     that failed as often as it was tried;
//   - an Uncertain error: COMMIT was sent and not answered. It is not attempted
//     again, because fn might then be done twice;
//   - an error of fn, as it is, after a rollback. If it is Retryable, or a driver's
//     that is Uncertain, such as a connection that was lost within a guard, fn is
//     run again, and the error is Retryable in the end.
//
// It protects nothing by itself: at READ COMMITTED the transaction sees a conflict
// only where fn looks for it, by a version in the condition of its UPDATE.
func Tx[T any](ctx context.Context, u *Updater, db driver.Beginner[T], name string, fn func(ctx context.Context, tx T) error) error {
	if fn == nil {
		return bug("update", name, errNoFunction)
	}
	return u.update(ctx, name, retryable, func() error {
		return attempt(ctx, db, name, func(tx driver.Tx[T]) error { return tx.Classify(fn(ctx, tx.Native())) })
	})
}

// attempt commits what work did in a transaction.
func attempt[T any](ctx context.Context, db driver.Beginner[T], name string, work func(tx driver.Tx[T]) error) error {
	if db == nil {
		return bug("begin", name, errors.New("there is no database"))
	}
	return transact.Do(ctx, db.Begin, name, work)
}

var errNoFunction = errors.New("there is no function that makes the change")
