package idempotency

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// ReaperOptions configure a [Reaper]; nil and the zero value are valid.
type ReaperOptions struct {
	// Overdue is how long a request must have been idle to be reported as unfinished; 0 means
	// an hour.
	Overdue time.Duration
	// Discard is the age from which unfinished requests are removed, although they may have had
	// effects; 0 never removes them. Use it for handlers without phases, which leave nothing to
	// finish. Below Overdue it counts as Overdue.
	Discard time.Duration
	// Batch is the maximum number of records that one statement removes and one pass reports; 0
	// means 1000.
	Batch int
	// Interval is the time between two passes of Run; 0 means a minute.
	Interval time.Duration
}

// A Reaper removes answers whose retention has passed. It reports unfinished requests to the
// hooks of the store, and removes them only if ReaperOptions.Discard is set.
type Reaper struct {
	store   *Store
	options ReaperOptions
}

// NewReaper returns a Reaper for s. One for all processes is enough; several do no harm.
func NewReaper(s *Store, o *ReaperOptions) *Reaper {
	r := &Reaper{store: s}
	r.options = *cmp.Or(o, &ReaperOptions{})
	or(&r.options.Overdue, time.Hour)
	or(&r.options.Batch, 1000)
	or(&r.options.Interval, time.Minute)
	return r
}

// Run makes a pass each Interval until ctx ends, and returns the cause of ctx. A failed pass is
// followed by the next.
func (r *Reaper) Run(ctx context.Context) error {
	return r.store.each(ctx, r.options.Interval, func(ctx context.Context) { _, _ = r.Pass(ctx) })
}

// A ReapReport is the result of a pass.
type ReapReport struct {
	Removed    int // finished requests whose retention had passed
	Unfinished int // overdue requests that were kept, at most Batch
	Discarded  int // overdue requests that were removed because of Discard
}

// Pass removes answers whose retention has passed, in batches, and reports unfinished requests.
// With an error, the report has what was done before the error.
func (r *Reaper) Pass(ctx context.Context) (done ReapReport, err error) {
	for more := true; more && err == nil; {
		var n int
		n, err = r.remove(ctx)
		done.Removed += n
		more = n == r.options.Batch
	}
	if err == nil {
		err = r.overdue(ctx, &done)
	}
	report.Now(r.store.options.Hooks.Reaped, observe.IdempotencyReaped{Removed: done.Removed, Unfinished: done.Unfinished})
	return done, err
}

// Sweep is Pass for a coordinator.SweepBy, which calls it at its retention interval.
func (r *Reaper) Sweep(ctx context.Context) (removed, overdue int, err error) {
	done, err := r.Pass(ctx)
	return done.Removed + done.Discarded, done.Unfinished, err
}

// remove removes a batch. Records that a try with an unknown outcome removed are not counted.
func (r *Reaper) remove(ctx context.Context) (n int, err error) {
	err = r.store.persist(ctx, func(int) (bool, error) {
		n, err = r.store.records.Remove(ctx, r.options.Batch)
		return again(err) || errors.Is(err, interlock.ErrUncertain), err
	})
	return n, err
}

func (r *Reaper) overdue(ctx context.Context, done *ReapReport) error {
	found, err := r.store.unfinished(ctx, driver.IdempotencyQuery{Lapsed: r.options.Overdue, Limit: r.options.Batch})
	for _, record := range found {
		discarded, failed := r.discard(ctx, record)
		if discarded {
			done.Discarded++
		} else {
			done.Unfinished++
		}
		r.store.left(record, discarded, failed)
	}
	return err
}

// discard removes a request that is older than Discard, unless another attempt has taken it
// over.
func (r *Reaper) discard(ctx context.Context, record driver.IdempotencyRecord) (bool, error) {
	if r.options.Discard <= 0 || record.Age < r.options.Discard {
		return false, nil
	}
	taken, err := r.store.takeUp(ctx, record)
	if taken == nil || err != nil {
		return false, err
	}
	old := taken.record.Age >= r.options.Discard // otherwise its client has sent it again
	err = r.store.give(ctx, taken, old)
	return old && err == nil, err
}

// renew renews the lease until ctx ends or the lease is lost. The lease is counted from just
// before the last successful renewal was sent, by driver/boottime. If the machine was
// suspended, this process notices the expiry at its next renewal; the store notices at once.
func (r *Request) renew(ctx context.Context) {
	s := r.store
	lease := s.options.Lease
	until := r.sent.Add(lease)
	for wait := until.Sub(boottime.Now()) - lease*2/3; backoff.Sleep(ctx, wait); {
		sent := boottime.Now()
		err := r.renewal(ctx, until.Sub(sent))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			until = sent.Add(lease)
			wait = until.Sub(boottime.Now()) - lease*2/3
			continue
		case errors.Is(err, interlock.ErrLost):
			r.lost(interlock.ErrLost)
			return
		case boottime.Now() >= until:
			r.lost(interlock.ErrExpired)
			return
		}
		report.Add(&s.reports, nil, s.options.Hooks.Renewed, observe.IdempotencyRenewed{Scope: r.id.Scope, Operation: r.id.Operation, Key: r.id.Key,
			Attempt: r.record.Attempt, Err: err})
		wait = min(lease/10, until.Sub(boottime.Now()))
	}
}

// renewal requests another lease within left, the time of the current one.
func (r *Request) renewal(ctx context.Context, left time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, left, interlock.ErrExpired)
	defer cancel()
	return r.store.records.Update(ctx, driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Lease: r.store.options.Lease})
}
