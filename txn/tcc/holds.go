package tcc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Holds is a [Table] as a participant, with transactions of its own. T is the type the
// user's code works with, such as pgx.Tx or *sql.Tx. It is safe for concurrent use.
type Holds[T any] struct {
	DB    driver.BeginnerAt[T]
	Table Table
	// Confirmed runs in the transaction that confirms a hold, such as to record the booking;
	// nil does nothing. [branch.From] has the branch. One call of each hold is committed. After
	// an error nothing is confirmed, and the call is repeated until it succeeds.
	Confirmed func(ctx context.Context, tx T, w Want) error
	// Again is the pause before a sweep asks again about a hold that will be confirmed; 0
	// means a minute.
	Again time.Duration
	// Idle bounds the time between two statements of a transaction, also within Confirmed: see
	// barrier.Table. It is at least a second; 0 means 15 seconds, below zero keeps the
	// session's setting.
	Idle time.Duration
}

// Take returns the resource whose tries hold units of an item, and whose confirmations remove
// them: seats, or money that leaves an account.
func (h Holds[T]) Take() Resource[Want, Want] { return resource[T]{h, h.Table.Take} }

// Give returns the resource whose tries announce units of an item, and whose confirmations add
// them: money that arrives at an account.
func (h Holds[T]) Give() Resource[Want, Want] { return resource[T]{h, h.Table.Give} }

// resource implements Take or Give.
type resource[T any] struct {
	holds Holds[T]
	try   func(ctx context.Context, db driver.SQL, w Want, until time.Time) error
}

// Try commits a refusal too, so that repeated calls get it.
func (r resource[T]) Try(ctx context.Context, w Want, until time.Time) (Want, error) {
	var refusal error
	err := r.holds.within(ctx, func(tx driver.Tx[T]) error {
		err := r.try(ctx, tx, w, until)
		if class, _ := branch.ClassOf(err); err != nil && class == branch.ClassFail {
			refusal = err
			return nil
		}
		return err
	})
	if err != nil {
		return w, err
	}
	return w, refusal
}

func (r resource[T]) Confirm(ctx context.Context, _ Want, _ Want) error {
	return r.holds.within(ctx, func(tx driver.Tx[T]) error {
		w, fresh, err := r.holds.Table.Confirm(ctx, tx)
		if err == nil && fresh && r.holds.Confirmed != nil {
			if err = r.holds.Confirmed(ctx, tx.Native(), w); err != nil {
				err = tx.Classify(err)
			}
		}
		return err
	})
}

func (r resource[T]) Cancel(ctx context.Context, _ Want, _ *Want) error { return r.holds.cancel(ctx) }

func (h Holds[T]) cancel(ctx context.Context) error {
	return h.within(ctx, func(tx driver.Tx[T]) error {
		_, _, err := h.Table.Cancel(ctx, tx)
		return err
	})
}

// defaultIdle equals barrier.DefaultIdle.
const defaultIdle = 15 * time.Second

// within runs work in a transaction, and classifies the database's errors. After an error nothing was
// done, unless the answer to COMMIT was lost.
func (h Holds[T]) within(ctx context.Context, work func(tx driver.Tx[T]) error) error {
	if h.DB == nil {
		return branch.Retry(failure.Bug("begin", branch.From(ctx).Transaction, "there is no database"))
	}
	err := transact.Do(ctx, transact.At(h.DB, driver.ReadCommitted), branch.From(ctx).Transaction, func(tx driver.Tx[T]) error {
		if h.Idle >= 0 {
			if err := tx.Bound(ctx, max(cmp.Or(h.Idle, defaultIdle), time.Second), 0); err != nil {
				return err
			}
		}
		return work(tx)
	})
	if class, _ := branch.ClassOf(err); err == nil || class != branch.ClassUnknown || interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return branch.Retry(err)
}

// SweepResult is the result of a sweep.
type SweepResult struct {
	Freed int // holds that were cancelled
	Kept  int // holds that will be confirmed
}

// Sweep asks for the decision on up to limit holds whose time is over by the database's clock,
// the oldest first, and cancels those that will not be confirmed. It releases nothing without a
// decision. Call it every few seconds, as [Holds.Watch] does. Several sweeps may run
// concurrently.
//
// It stops at the first temporary error, such as an unreachable coordinator; the next sweep
// begins with the other holds, which may have another coordinator. A problem of a single hold is
// reported and does not affect the others.
func (h Holds[T]) Sweep(ctx context.Context, ask Ask, limit int) (s SweepResult, err error) {
	if ask == nil || limit < 1 {
		return s, failure.Bug("sweep", "", "it needs a function Ask and a limit of at least 1, not %d", limit)
	}
	var all []ref
	err = h.within(ctx, func(tx driver.Tx[T]) error {
		all, err = h.Table.due(ctx, tx, limit)
		return err
	})
	for _, o := range all {
		failed := h.sweep(ctx, ask, o, &s)
		err = errors.Join(err, failed)
		if failed != nil && (ctx.Err() != nil || temporary(failed)) {
			return s, err
		}
	}
	return s, err
}

// watchEvery is the pause between two sweeps of [Holds.Watch].
const watchEvery = 2 * time.Second

// Watch sweeps until ctx ends, and returns its cause, or the error of a sweep. A txn.Runtime runs
// it for the resources of its engine, and restarts it after an error.
func (h Holds[T]) Watch(ctx context.Context, ask Ask) error {
	for {
		if _, err := h.Sweep(ctx, ask, 100); err != nil {
			return err
		}
		if !backoff.Sleep(ctx, watchEvery) {
			return context.Cause(ctx)
		}
	}
}

func (r resource[T]) watch(ctx context.Context, ask Ask) error { return r.holds.Watch(ctx, ask) }

// sweep asks for the decision on one hold. A failure does not stop the sweep of others.
func (h Holds[T]) sweep(ctx context.Context, ask Ask, o ref, s *SweepResult) error {
	decision, err := ask(ctx, o.transaction, o.branch)
	if err == nil && decision == Cancel {
		err = h.cancel(branch.With(ctx, branch.Call{Transaction: o.transaction, Branch: o.branch, Operation: branch.Cancel}))
		if err == nil {
			s.Freed++
			return nil
		}
	}
	again := h.Again
	if again <= 0 {
		again = time.Minute
	}
	switch {
	case err == nil:
		s.Kept++
	case temporary(err):
		again = 0 // it stays due, behind those that are
	}
	return errors.Join(err, h.within(ctx, func(tx driver.Tx[T]) error { return h.Table.postpone(ctx, tx, o, again) }))
}

// temporary reports whether a retry may succeed.
func temporary(err error) bool {
	kind := interlock.Kind(err)
	return kind == interlock.Uncertain || kind == interlock.Retryable
}
