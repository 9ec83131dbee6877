package version

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultAttempts is the default of Options.Attempts.
const DefaultAttempts = 4

// Options configure an [Updater] and a [Store]; nil and the zero value are valid.
type Options struct {
	// Attempts is the maximum number of attempts of an update; 0 means [DefaultAttempts]. Three
	// to five are enough if conflicts are rare; otherwise more attempts do not help.
	Attempts int
	// First is the upper bound of the delay after the first attempt; the bound doubles with
	// each attempt, up to Max. A delay is a random part of its bound, at least an eighth. 0
	// means 10 ms and 1 s.
	First, Max time.Duration
	// HandOff handles an update whose last attempt has met a conflict, and its result becomes
	// the result of the update. For example, it puts the work into a queue with one consumer
	// per entity, or does it under a lock. Nil returns the error.
	HandOff func(ctx context.Context, err *ConflictError) error
	// Hooks receive events; nil logs failures, see package observe. [Stats] counts them.
	Hooks *observe.Version
}

// validate returns o with defaults, or an error if it is invalid.
func (o *Options) validate() (Options, error) {
	c := *cmp.Or(o, &Options{})
	if c.Attempts < 0 || c.First < 0 || c.Max < 0 {
		return c, bug("make updater", "", errors.New("a negative number of Attempts, or a negative pause"))
	}
	c.Attempts = cmp.Or(c.Attempts, DefaultAttempts)
	c.First, c.Max = cmp.Or(c.First, 10*time.Millisecond), cmp.Or(c.Max, time.Second)
	c.Hooks = c.Hooks.WithDefaults()
	return c, nil
}

// An Updater attempts optimistic updates a few times, with delays in between. It is safe for
// concurrent use, and one Updater serves all entities.
type Updater struct{ options Options }

// NewUpdater returns an updater. If the options are invalid, the error is of kind Bug.
func NewUpdater(o *Options) (*Updater, error) {
	options, err := o.validate()
	if err != nil {
		return nil, err
	}
	return &Updater{options}, nil
}

// update attempts until an attempt succeeds, its error is not worth a retry, or there are no
// attempts left.
func (u *Updater) update(ctx context.Context, name string, isRetryable func(error) bool, attempt func() error) error {
	if u == nil {
		return bug("update", name, errors.New("an Updater is required: see NewUpdater"))
	}
	for n := 1; ; n++ {
		err := attempt()
		conflict := conflicted(err)
		report.Now(u.options.Hooks.Attempted, observe.VersionAttempted{Name: name, Attempt: n, Conflict: conflict, Err: err})
		switch {
		case err == nil || !isRetryable(err):
			return err
		case n >= u.options.Attempts && conflict:
			return u.exhausted(ctx, &ConflictError{Name: name, Attempts: n, Err: err})
		case n >= u.options.Attempts:
			return err
		}
		delay := u.delay(n)
		report.Now(u.options.Hooks.Retrying, observe.VersionRetrying{Name: name, Attempt: n, Delay: delay, Err: err})
		if !backoff.Sleep(ctx, delay) {
			return fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

func (u *Updater) exhausted(ctx context.Context, err *ConflictError) error {
	report.Now(u.options.Hooks.Exhausted, observe.VersionExhausted{Name: err.Name, Attempts: err.Attempts, HandedOff: u.options.HandOff != nil})
	if u.options.HandOff == nil {
		return err
	}
	return u.options.HandOff(ctx, err)
}

// persist retries a request that converges while its error is Retryable or Uncertain. doubt
// reports that one of the requests had no reply.
func (u *Updater) persist(ctx context.Context, request func() error) (doubt bool, err error) {
	for n := 1; ; n++ {
		err := request()
		kind := interlock.Kind(err)
		if err == nil || kind != interlock.Retryable && kind != interlock.Uncertain {
			return doubt, err
		}
		doubt = doubt || kind == interlock.Uncertain
		if n >= u.options.Attempts {
			return doubt, err
		}
		if !backoff.Sleep(ctx, u.delay(n)) {
			return doubt, fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

// delay returns the delay after n attempts.
func (u *Updater) delay(n int) time.Duration {
	return backoff.Policy{First: u.options.First, Max: u.options.Max}.Delay(n, rand.Float64())
}

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

// ErrConflict means that another writer was faster, and that nothing was done. A function that
// [Tx] runs returns it, or an error that wraps it, to be run again. It is Retryable.
var ErrConflict error = &interlock.Error{Op: "update", Kind: interlock.Retryable,
	Err: errors.New("another writer changed it since it was read")}

// A ConflictError means that each attempt met a conflict, and that nothing was done. It is an
// [ErrConflict] and Retryable: the same update may succeed once there are fewer writers.
type ConflictError struct {
	Name     string
	Attempts int
	Err      error // of the last attempt
}

// Error names the entity and the number of attempts.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("update %q: %d attempts met another writer's change: %v", e.Name, e.Attempts, e.Err)
}

// Unwrap returns [ErrConflict] and the last attempt's error.
func (e *ConflictError) Unwrap() []error { return []error{ErrConflict, e.Err} }

// ErrorKind returns [interlock.Retryable].
func (e *ConflictError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A TerminalError means that an entity was not updated because its state is terminal. It is
// Definite.
type TerminalError struct {
	Name  string
	Stamp Stamp // of the terminal state
}

// Error names the entity.
func (e *TerminalError) Error() string {
	return fmt.Sprintf("update %q: its state is terminal, at %v", e.Name, e.Stamp)
}

// ErrorKind returns [interlock.Definite].
func (e *TerminalError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// retryable reports whether a next attempt in a database may succeed: after a conflict or a
// connection failure.
func retryable(err error) bool { return interlock.Kind(err) == interlock.Retryable }

// conflicting reports a conflict. Requests to a store are already retried, so another failure
// is not attempted again.
func conflicting(err error) bool { return errors.Is(err, ErrConflict) }

// conflicted reports whether another transaction caused err: ErrConflict, or the database undid
// a transaction in favor of others, or did not grant a lock in time. SQLSTATE 40… means this in
// both databases, and 55P03 in PostgreSQL. For the other Retryable errors MariaDB has only
// HY000.
func conflicted(err error) bool {
	if err == nil || !retryable(err) {
		return false
	}
	state := failure.SQLState(err)
	return errors.Is(err, ErrConflict) || errors.Is(err, interlock.ErrHeld) || strings.HasPrefix(state, "40") || state == "HY000"
}

// Stats counts the results of updates. The zero value is ready. It is safe for concurrent use,
// and several updaters may share it.
type Stats struct {
	attempts, conflicts, retries, exhausted, handedOff atomic.Int64
}

// Counts are the numbers of a [Stats] at some time.
type Counts struct {
	Attempts  int64 // those of all updates together
	Conflicts int64 // attempts that met another writer's change
	Retries   int64 // attempts that were to be followed by another one
	Exhausted int64 // updates whose last attempt met a conflict
	HandedOff int64 // those of them that Options.HandOff took over
}

// ConflictRate returns the share of attempts that met a conflict: from 0 to 1, and 0 if there
// were no attempts.
func (c Counts) ConflictRate() float64 {
	if c.Attempts == 0 {
		return 0
	}
	return float64(c.Conflicts) / float64(c.Attempts)
}

// Counts returns the numbers; it reads each separately.
func (s *Stats) Counts() Counts {
	return Counts{Attempts: s.attempts.Load(), Conflicts: s.conflicts.Load(), Retries: s.retries.Load(),
		Exhausted: s.exhausted.Load(), HandedOff: s.handedOff.Load()}
}

// Hooks returns hooks that count; pass them in Options.
func (s *Stats) Hooks() *observe.Version {
	return &observe.Version{
		Attempted: func(e observe.VersionAttempted) {
			s.attempts.Add(1)
			if e.Conflict {
				s.conflicts.Add(1)
			}
		},
		Retrying: func(observe.VersionRetrying) { s.retries.Add(1) },
		Exhausted: func(e observe.VersionExhausted) {
			s.exhausted.Add(1)
			if e.HandedOff {
				s.handedOff.Add(1)
			}
		},
	}
}
