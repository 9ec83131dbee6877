package version

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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
		return attempt(ctx, db, name, func(tx driver.Tx[T]) error { return uncommitted(tx.Classify(fn(ctx, tx.Native()))) })
	})
}

// attempt commits what work did in a transaction. A rollback ignores that ctx has
// ended, and is also done if work panics.
func attempt[T any](ctx context.Context, db driver.Beginner[T], name string, work func(tx driver.Tx[T]) error) error {
	if db == nil {
		return bug("begin", name, errors.New("there is no database"))
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return about("begin", name, err)
	}
	sent := false
	defer func() {
		if !sent {
			// If this fails the connection is closed; COMMIT was never sent.
			_ = tx.Rollback(ctx)
		}
	}()
	if err := work(tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return problem("commit", name, interlock.Definite, context.Cause(ctx))
	}
	sent = true
	return about("commit", name, tx.Commit(ctx))
}

// uncommitted makes an error of unknown outcome Retryable: what a statement did
// does not matter in a transaction that is never committed.
func uncommitted(err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Driver == "" || e.Kind != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: interlock.Retryable, Err: e.Err}
}

var errNoFunction = errors.New("there is no function that makes the change")
