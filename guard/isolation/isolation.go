// Package isolation runs a transaction at an isolation level, and runs it again if the database
// undid it in favor of other transactions. A level does not mean the same on every database.
// The package does not guard effects outside of the transaction, and never repeats a
// transaction that may have been committed.
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
// The function may run several times. It must have no effects outside of its transaction, and
// must not use data that an earlier run has read.
//
// # Retries
//
// Errors that a driver classifies as Retryable are retried:
//
//   - a serialization failure (SQLSTATE 40001)
//   - a deadlock (40P01; 1213 on MariaDB)
//   - a lock timeout (55P03; 1205)
//   - a row that changed since the snapshot was taken (1020)
//   - a connection that ended before COMMIT was sent
//
// The function may return the error of its client library, of a driver.SQL or of a guard,
// wrapped or not.
//
// # Levels
//
// docs/reference/isolation.md lists the anomalies that each level of each database allows, and
// how it prevents the others; a test verifies the list. At SERIALIZABLE, PostgreSQL fails
// transactions that have no serial order. MariaDB lets them wait for each other's reads, and
// ends deadlocks.
//
// # On MariaDB
//
// After a deadlock the server has undone the transaction. If a function ignores that error, its
// next statement would run outside of the transaction. Transactions of this package are marked,
// so that COMMIT detects this and fails. The error is Uncertain if the function used its own
// handle, and Definite if it used a driver.SQL.
package isolation

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// Serializable is [Do] at SERIALIZABLE. If all transactions run at this level, the committed
// ones have the same effect as if they had run one at a time.
func Serializable[T any](ctx context.Context, db driver.BeginnerAt[T], o *Options, fn func(ctx context.Context, tx T) error) error {
	return Do(ctx, db, driver.Serializable, o, fn)
}

// Do runs fn in a transaction at a level, and commits if fn returns nil. If the database undid
// the transaction in favor of others, Do runs it again after a delay, until Options.Attempts
// are used up or ctx ends. fn must not end the transaction.
//
// Do returns nil if the transaction was committed. Otherwise nothing was committed, unless the
// error is Uncertain. The error is one of:
//
//   - an [ExhaustedError] (Retryable), if all attempts failed
//   - if ctx ended between two attempts, the error of the last attempt with the cause of ctx
//   - an Uncertain error: the reply to COMMIT was lost, or fn returned an Uncertain error that
//     is not a driver's (then COMMIT was not sent). The caller must find out whether it was
//     committed; Do does not retry
//   - an error of fn, unchanged, after a rollback. If it came from the database and has no
//     kind, Do adds one
//
// A rollback ignores the cancellation of ctx and has its own bound. Do also rolls back if fn
// panics.
func Do[T any](ctx context.Context, db driver.BeginnerAt[T], level driver.Isolation, o *Options, fn func(ctx context.Context, tx T) error) error {
	options, err := o.filled()
	if err != nil {
		return err
	}
	began := options.clock.now()
	attempts, err := options.repeat(ctx, level, func() error { return once(ctx, db, level, options, fn) })
	report.Now(options.Observe.Ended, observe.IsolationEnded{Level: level.String(), Attempts: attempts,
		Took: options.clock.now().Sub(began), Err: err})
	return err
}

// repeat calls try until it succeeds, must not be repeated, or has no attempts left.
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
		report.Now(o.Observe.Retried, observe.IsolationRetried{Level: level.String(), Attempt: n, Wait: wait, Err: err})
		if !o.clock.sleep(ctx, wait) {
			return n, fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

// once runs one attempt.
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

// longest is an idle time without effect: the session's own is shorter.
const longest = 24 * time.Hour

// DefaultAttempts is the default of Options.Attempts.
const DefaultAttempts = 5

// waits is the delay between attempts. It is random, so that transactions that conflicted do
// not conflict again.
var waits = backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}

// Options configure [Do] and [Serializable]; nil and the zero value are valid.
type Options struct {
	// Attempts is the maximum number of runs of the function; 0 means [DefaultAttempts].
	// Between them is a capped exponential backoff with jitter: at most 20 ms before the second
	// attempt, doubled before each later one, up to a second.
	Attempts int
	// Idle is how long a transaction may be idle before the server ends it, so that a paused
	// process does not block others. 0 keeps the session's setting. MariaDB counts it in whole
	// seconds.
	Idle time.Duration
	// Statement is how long one statement may run or wait for locks; it requires Idle. 0 keeps
	// the session's setting.
	Statement time.Duration
	// Observe receives events; the zero value disables it.
	Observe observe.Isolation

	clock *clock
}

// clock is the source of time and randomness.
type clock struct {
	now    func() time.Time
	random func() float64 // in [0,1)
	// sleep waits for d and returns false if ctx ended first.
	sleep func(ctx context.Context, d time.Duration) bool
}

var realClock = clock{now: time.Now, random: rand.Float64, sleep: backoff.Sleep}

// filled returns o with defaults, or an error if it is invalid.
func (o *Options) filled() (Options, error) {
	filled := *cmp.Or(o, &Options{})
	filled.clock = cmp.Or(filled.clock, &realClock)
	switch {
	case filled.Attempts < 0, filled.Idle < 0, filled.Statement < 0:
		return filled, failure.Bug("run transaction", "", "options: a negative number")
	case filled.Statement > 0 && filled.Idle == 0:
		return filled, failure.Bug("run transaction", "", "options: Statement requires Idle")
	}
	filled.Attempts = cmp.Or(filled.Attempts, DefaultAttempts)
	return filled, nil
}

// An ExhaustedError means that the database undid the transaction at each attempt. Nothing was
// done. It is Retryable: with fewer concurrent transactions it may succeed.
type ExhaustedError struct {
	Level    driver.Isolation
	Attempts int
	Err      error // of the last one
}

// Error returns a message with the number of attempts.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("a %v transaction was undone %d times in favor of others: %v", e.Level, e.Attempts, e.Err)
}

// Unwrap returns the error of the last attempt.
func (e *ExhaustedError) Unwrap() error { return e.Err }

// ErrorKind returns [interlock.Retryable].
func (e *ExhaustedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }
