package version

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Tx runs fn in a new transaction and commits it. After a conflict it retries in another
// transaction. A conflict is one of:
//
//   - fn returned [ErrConflict], because its conditional UPDATE found no row
//   - the database undid the transaction in favor of others: a serialization failure, a
//     deadlock or a lock timeout
//
// name says in hooks and errors what is updated.
//
// fn may run several times, and must not end the transaction. Its effects outside of the
// transaction happen in every run. Tx returns nil if the transaction was committed. Otherwise:
//
//   - a [ConflictError], or the result of Options.HandOff: nothing was done
//   - another Retryable error: nothing was done, for a reason such as a connection that failed
//     at every attempt
//   - an Uncertain error: COMMIT was sent and no reply came. Tx does not retry, because the
//     effect might then happen twice
//   - an error of fn, unchanged, after a rollback. If it is Retryable, or an Uncertain one of a
//     driver, such as a connection that was lost within a guard, Tx runs fn again; the final
//     error is Retryable
//
// Tx protects nothing by itself: at READ COMMITTED the transaction detects a conflict only if
// fn checks for it, by a version in the condition of its UPDATE.
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
		return bug("begin", name, errors.New("a database is required"))
	}
	return transact.Do(ctx, db.Begin, name, work)
}

var errNoFunction = errors.New("a function for the change is required")
