package sagatest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// live is one engine from its start to its crash, to the end of the saga, or until the
// time of the run is up.
func (r *run) live(store *memory.Journal, l *rehearsal.Life, n int64) error {
	ctx, stop := context.WithTimeoutCause(context.Background(), r.limit, errors.New("the time of the run is up"))
	defer stop()
	ctx, l.End = context.WithCancelCause(ctx)
	defer l.End(nil)
	a := &alarm{limit: r.limit}
	defer a.stop()
	ready := make(chan struct{})
	j, err := journal.New(rehearsal.Journal{Journal: store, Life: l, Left: a.set, Serving: sync.OnceFunc(func() { close(ready) })}, &journal.Options{Shards: 1, Patience: rehearsal.Patience})
	if err != nil {
		return err
	}
	defer j.Close()
	c, engine, err := r.engine(j, l)
	if err != nil {
		return err
	}
	a.ring = func() { c.Nudge(id) }
	if left, err := store.Due(ctx, 0, driver.Head{}, 1); err == nil && len(left) > 0 {
		a.set(left[0].Due)
	}
	owner, err := rehearsal.Grant(ctx, n)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx, owner, 0) }()
	select {
	case <-ready:
	case <-ctx.Done():
	}
	if err := r.drive(ctx, l, engine, served); err != nil || r.hangs {
		return err
	}
	return r.read(store)
}

// drive has the saga done by an engine that is served. What comes of it is read from the
// journal; an error is one of who asks.
func (r *run) drive(ctx context.Context, l *rehearsal.Life, e *saga.Engine, served <-chan error) error {
	err := r.do(ctx, e)
	if ctx.Err() != nil || isEnded(err) {
		err = nil
	}
	l.End(nil)
	select {
	case cause := <-served:
		if cause != nil && interlock.Kind(cause) == interlock.Bug {
			err = errors.Join(err, cause)
		}
	case <-time.After(r.limit):
		r.hangs = true
	}
	return err
}

func isEnded(err error) bool {
	var ended *saga.EndedError
	return errors.As(err, &ended)
}

func (r *run) engine(j *journal.Journal, l *rehearsal.Life) (*coordinator.Coordinator, *saga.Engine, error) {
	never := 2 * r.limit // an alarm tells what is due, and the end wakes who waits for it
	o := coordinator.Options{Poll: never, Recheck: never, Random: func() float64 { return 0.5 }}
	if r.realTime {
		o.Random = func() float64 { return 0 }
	}
	c, err := coordinator.New(j, &o)
	if err != nil {
		return nil, nil, err
	}
	e, err := saga.New(c, nil, r.defined(r.around(l)))
	return c, e, err
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
