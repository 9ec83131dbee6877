package sagatest

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// live is one engine from its start to its crash, to the end of the saga, or until the
// time of the run is up. What comes of it is read from the journal; an error is one of who
// asks.
func (r *run) live(store *memory.Journal, n int64) (failed error) {
	a := &alarm{limit: r.limit}
	defer a.stop()
	var engine *saga.Engine
	open := func(ctx context.Context, j rehearsal.Journal) (*coordinator.Coordinator, func(), error) {
		never := 2 * r.limit // an alarm tells what is due, and the end wakes who waits for it
		c, closed, err := rehearsal.Open(j, coordinator.Options{Poll: never, Recheck: never}, r.realTime)
		if err != nil {
			return nil, nil, err
		}
		if engine, err = saga.New(c, nil, r.defined(r.around(j.Life))); err != nil {
			closed()
			return nil, nil, err
		}
		a.ring = func() { c.Nudge(id) }
		if left, err := store.Due(ctx, 0, driver.Head{}, 1); err == nil && len(left) > 0 {
			a.set(left[0].Due)
		}
		return c, closed, nil
	}
	cause, err := r.Live(n, r.limit, r.limit, rehearsal.Journal{Journal: store, Left: a.set}, open, func(ctx context.Context) {
		if err := r.do(ctx, engine); ctx.Err() == nil && !isEnded(err) {
			failed = err
		}
	})
	if cause != nil && interlock.Kind(cause) == interlock.Bug {
		failed = errors.Join(failed, cause)
	}
	if failed = errors.Join(err, failed); failed != nil || r.Hangs {
		return failed
	}
	return r.read(store)
}

func isEnded(err error) bool {
	var ended *saga.EndedError
	return errors.As(err, &ended)
}

// read is how the saga stands by its journal.
func (r *run) read(store *memory.Journal) error {
	j, err := journal.New(store, &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	_, entries, err := j.Open(context.Background(), id)
	if err != nil {
		return err
	}
	moments, err := saga.Replay(entries)
	if err != nil || len(moments) == 0 {
		return err // an engine that crashed before it began the saga left nothing
	}
	last := moments[len(moments)-1]
	r.state, r.reason, r.steps = last.State, last.Reason, last.Steps
	return nil
}
