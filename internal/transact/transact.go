// Package transact runs work in a new transaction, or in one of the caller's so that it is not
// committed in part. It does not retry, and cannot undo effects outside the transaction.
package transact

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// ErrNothing is returned by work that has nothing to commit: Do then rolls back and returns
// nil.
var ErrNothing = errors.New("nothing to commit")

// Do begins a transaction, runs work in it, and commits if that returns nil. Otherwise, and if
// work panics, it rolls back; the rollback ignores the end of ctx and has its own bound. name
// is the object in errors.
//
// An error of work is returned unchanged, except a driver's of unknown outcome: it becomes
// Retryable, because nothing was committed. If ctx ends before COMMIT is sent, Do does not send
// it, and the error is Definite. So an Uncertain error of a driver means that COMMIT was sent
// without a reply.
func Do[T any](ctx context.Context, begin func(context.Context) (driver.Tx[T], error), name string, work func(tx driver.Tx[T]) error) error {
	tx, err := begin(ctx)
	if err != nil {
		return failure.Uncommitted(failure.About("begin", name, err))
	}
	sent := false
	defer func() {
		if !sent {
			// If this fails the connection is closed; COMMIT was never sent.
			_ = tx.Rollback(ctx)
		}
	}()
	switch err := work(tx); {
	case errors.Is(err, ErrNothing):
		return nil
	case err != nil:
		return failure.Uncommitted(err)
	case ctx.Err() != nil: // a commit now could have an unknown outcome
		return &interlock.Error{Op: "commit", Name: name, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	sent = true
	return failure.About("commit", name, tx.Commit(ctx))
}

// Notify runs fn in a transaction, commits it if fn returns nil, and then notifies, even if the
// outcome of the commit is unknown. notifier may be nil.
func Notify[T any](ctx context.Context, db driver.Beginner[T], notifier driver.Notifier, fn func(ctx context.Context, tx T) error) error {
	worked := false
	err := Do(ctx, db.Begin, "", func(tx driver.Tx[T]) error {
		err := tx.Classify(fn(ctx, tx.Native()))
		worked = err == nil
		return err
	})
	if notifier != nil && worked && (err == nil || interlock.Kind(err) == interlock.Uncertain) {
		notifier.Notify()
	}
	return err
}

// At returns a function that begins transactions of a level.
func At[T any](db driver.BeginnerAt[T], level driver.Isolation) func(context.Context) (driver.Tx[T], error) {
	return func(ctx context.Context) (driver.Tx[T], error) { return db.BeginAt(ctx, level) }
}

// Preferably returns a function that begins transactions of a level, if db supports levels.
func Preferably[T any](db driver.Beginner[T], level driver.Isolation) func(context.Context) (driver.Tx[T], error) {
	if at, ok := db.(driver.BeginnerAt[T]); ok {
		return At(at, level)
	}
	return db.Begin
}

// spoilTimeout bounds the statement that spoils a transaction.
const spoilTimeout = 5 * time.Second

// Whole runs work in a transaction that its caller commits, perhaps even if work
// fails. If work calls begin and then fails or panics, the transaction can no longer
// be committed. PostgreSQL then rolls back instead of committing. MariaDB rolls back
// at once, and db refuses further statements; in a branch of XA it ends the session. why is
// the reason that the server reports; it must be a constant without quotes.
func Whole(ctx context.Context, db driver.SQL, why string, work func(begin func()) error) error {
	begun, good := false, false
	defer func() {
		if begun && !good {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoilTimeout)
			defer cancel()
			if _, err := db.Exec(ctx, spoil(db.Dialect(), why)); failure.SQLState(err) == noRollback {
				_, _ = db.Exec(ctx, `kill connection_id()`)
			}
		}
	}()
	err := work(func() { begun = true })
	good = err == nil
	return err
}

// noRollback is the SQLSTATE of a ROLLBACK in a branch of XA on MariaDB.
const noRollback = "XAE07"

// spoil returns a statement that fails. On MariaDB a failure does not prevent a
// commit: there the statement rolls back first, and then fails as a deadlock does.
// After that the driver refuses further statements.
func spoil(d driver.Dialect, why string) string {
	if d == driver.MariaDB {
		return `begin not atomic
	rollback;
	signal sqlstate '40001' set mysql_errno = 1213, message_text = '` + why + `';
end`
	}
	return `select '` + why + `'::integer`
}
