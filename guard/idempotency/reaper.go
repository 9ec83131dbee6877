package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// ReaperOptions of a [Reaper]; nil and the zero value work.
type ReaperOptions struct {
	// Overdue is for how long nobody has worked on a request when it is reported as
	// unfinished; 0 means an hour.
	Overdue time.Duration
	// Discard removes unfinished requests that were begun so long ago, although they
	// may have had effects; 0 never does. It is for those whose handlers have no
	// phases, and leave nothing to finish. Below Overdue it counts as Overdue.
	Discard time.Duration
	// Batch is how many records one statement removes, and how many one pass
	// reports; 0 means 1000.
	Batch int
	// Interval is the time between two passes of Run; 0 means a minute.
	Interval time.Duration
}

// A Reaper removes answers that were kept for long enough. It does not remove what
// is unfinished unless an option says so, but reports it to the hooks of the store.
type Reaper struct {
	store   *Store
	options ReaperOptions
}

// NewReaper reaps what s keeps. One for all processes is enough; more do no harm.
func NewReaper(s *Store, o *ReaperOptions) *Reaper {
	r := &Reaper{store: s}
	if o != nil {
		r.options = *o
	}
	or(&r.options.Overdue, time.Hour)
	or(&r.options.Batch, 1000)
	or(&r.options.Interval, time.Minute)
	return r
}

// Run makes a pass each Interval until ctx ends, and returns its cause. A pass that
// fails is followed by the next.
func (r *Reaper) Run(ctx context.Context) error {
	return r.store.each(ctx, r.options.Interval, func(ctx context.Context) { _, _ = r.Pass(ctx) })
}

// A ReapReport is what a pass found.
type ReapReport struct {
	Removed    int // finished, and kept for long enough
	Unfinished int // overdue, and left alone; no more than Batch are counted
	Discarded  int // overdue, and removed because Discard said so
}

// Pass removes what is past its time, batch by batch, and reports what is
// unfinished. What it returns with an error was done before that.
func (r *Reaper) Pass(ctx context.Context) (report ReapReport, err error) {
	for more := true; more && err == nil; {
		var n int
		n, err = r.remove(ctx)
		report.Removed += n
		more = n == r.options.Batch
	}
	if err == nil {
		err = r.overdue(ctx, &report)
	}
	if hook := r.store.options.Hooks.Reaped; hook != nil {
		hook(observe.IdempotencyReaped{Removed: report.Removed, Unfinished: report.Unfinished})
	}
	return report, err
}

// Sweep is Pass for a coordinator.SweepBy, which calls it as often as its retention runs.
func (r *Reaper) Sweep(ctx context.Context) (removed, overdue int, err error) {
	report, err := r.Pass(ctx)
	return report.Removed + report.Discarded, report.Unfinished, err
}

// remove removes a batch. What an attempt of unknown outcome removed is not counted.
func (r *Reaper) remove(ctx context.Context) (n int, err error) {
	err = r.store.persist(ctx, func(int) (bool, error) {
		n, err = r.store.records.Remove(ctx, r.options.Batch)
		return again(err) || errors.Is(err, interlock.ErrUncertain), err
	})
	return n, err
}

func (r *Reaper) overdue(ctx context.Context, report *ReapReport) error {
	found, err := r.store.unfinished(ctx, driver.IdempotencyQuery{Lapsed: r.options.Overdue, Limit: r.options.Batch})
	for _, record := range found {
		discarded, failed := r.discard(ctx, record)
		if discarded {
			report.Discarded++
		} else {
			report.Unfinished++
		}
		r.store.left(record, discarded, failed)
	}
	return err
}

// discard removes a request that is older than Discard, unless somebody has taken
// it up.
func (r *Reaper) discard(ctx context.Context, record driver.IdempotencyRecord) (bool, error) {
	if r.options.Discard <= 0 || record.Age < r.options.Discard {
		return false, nil
	}
	taken, err := r.store.takeUp(ctx, record)
	if taken == nil || err != nil {
		return false, err
	}
	old := taken.record.Age >= r.options.Discard // or it was sent again by its client
	err = r.store.give(ctx, taken, old)
	return old && err == nil, err
}
