// Package isolation runs a transaction at a level of isolation, and again when the
// database undid it because of others. It does not make a level mean the same on
// every database, guards nothing that a function does outside its transaction, and
// never runs a transaction again that may have been committed.
//
//	err := isolation.Serializable(ctx, postgres.Pool(pool), nil,
//		func(ctx context.Context, tx pgx.Tx) error {
//			var onCall int
//			err := tx.QueryRow(ctx, `select count(*) from doctor where on_call`).Scan(&onCall)
//			if err != nil || onCall < 2 {
//				return cmp.Or(err, errLastDoctor)
//			}
//			_, err = tx.Exec(ctx, `update doctor set on_call = false where name = $1`, name)
//			return err
//		})
//
// The function may run several times: it must have no effect but by its
// transaction, and must not use what an earlier run has read.
//
// # What is run again
//
// Whatever the drivers call Retryable: a serialization failure (SQLSTATE 40001), a
// deadlock (40P01; 1213 on MariaDB), a lock that was not to be had in time (55P03;
// 1205), a row that changed since the snapshot was taken (1020), and a connection
// that ended before COMMIT was sent. It makes no difference whether the function
// returns the error as its client library gave it, or a driver.SQL or a guard, or
// wrapped.
//
// # Levels
//
// docs/reference/isolation.md shows which anomaly each level of each database lets happen,
// and how it prevents the others; a test keeps it true. PostgreSQL fails where
// transactions could not have run one after the other; MariaDB lets them wait for
// each other's reads, until some of them are a deadlock.
//
// # On MariaDB
//
// After a deadlock the server has undone the transaction, and whatever a function
// that ignores the error sends next would stand by itself. Transactions here
// are marked, so that COMMIT notices and fails: with an error that is Uncertain if
// the function used its own handle, and Definite if it used a driver.SQL.
package isolation

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// Serializable is [Do] at SERIALIZABLE: the transactions that were committed have
// an effect as if they had run one after the other, as far as all of them run at
// this level.
func Serializable[T any](ctx context.Context, db driver.BeginnerAt[T], o *Options, fn func(ctx context.Context, tx T) error) error {
	return Do(ctx, db, driver.Serializable, o, fn)
}

// Do runs fn in a transaction at a level, and commits it if fn returns nil. If the
// transaction was undone because of others it is run again, after a wait, until
// Options.Attempts or ctx are at an end. fn must not end the transaction.
//
// It returns nil if the transaction was committed. Otherwise nothing was, unless
// the error says that the outcome is unknown:
//
//   - an [ExhaustedError], Retryable, when all attempts failed; or, if ctx ended
//     between two attempts, the error of the last one with the cause;
//   - an Uncertain error: the answer to COMMIT was lost, or fn gave one that is no
//     driver's (then COMMIT was not sent). Whether it was done has to be found out by
//     looking; it is not run again;
//   - an error of fn, as it is, after a rollback. If it came from the database and
//     bears no kind of its own, it is given one.
//
// A rollback ignores the cancellation of ctx and has a bound of its own. It is
// also done if fn panics.
func Do[T any](ctx context.Context, db driver.BeginnerAt[T], level driver.Isolation, o *Options, fn func(ctx context.Context, tx T) error) error {
	options, err := o.filled()
	if err != nil {
		return err
	}
	began := options.clock.now()
	attempts, err := options.repeat(ctx, level, func() error { return once(ctx, db, level, options, fn) })
	if options.Observe.Ended != nil {
		options.Observe.Ended(observe.IsolationEnded{Level: level.String(), Attempts: attempts,
			Took: options.clock.now().Sub(began), Err: err})
	}
	return err
}

// repeat calls try until it works, must not be repeated, or was tried often enough.
func (o Options) repeat(ctx context.Context, level driver.Isolation, try func() error) (attempts int, err error) {
	for n := 1; ; n++ {
		err := try()
		switch {
		case err == nil, interlock.Kind(err) != interlock.Retryable:
			return n, err
		case n >= o.Attempts:
			return n, &ExhaustedError{Level: level, Attempts: n, Err: err}
		}
		wait := waits.Delay(n, o.clock.random())
		if o.Observe.Retried != nil {
			o.Observe.Retried(observe.IsolationRetried{Level: level.String(), Attempt: n, Wait: wait, Err: err})
		}
		if !o.clock.sleep(ctx, wait) {
			return n, fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

// once is one attempt.
func once[T any](ctx context.Context, db driver.BeginnerAt[T], level driver.Isolation, o Options, fn func(ctx context.Context, tx T) error) error {
	return transact.Do(ctx, transact.At(db, level), "", func(tx driver.Tx[T]) error {
		if o.Idle > 0 || tx.Dialect() == driver.MariaDB {
			if err := tx.Bound(ctx, cmp.Or(o.Idle, longest), o.Statement); err != nil {
				return err
			}
		}
		return tx.Classify(fn(ctx, tx.Native()))
	})
}

// longest is an idle time that bounds nothing: one that a session has is shorter.
const longest = 24 * time.Hour
