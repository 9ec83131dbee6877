package tcctest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// The ids of the transactions of each run.
const (
	id      = "explored"
	rivalID = "explored by another"
)

var errUp = errors.New("the time of the run is up")

// live is one engine from its start to its crash, to the end of the transaction, or
// until the time of the run is up.
func (r *run) live(store *memory.Journal, n int64) error {
	ctx, stop := context.WithTimeoutCause(context.Background(), r.limit(), errUp)
	defer stop()
	ctx, r.life.End = context.WithCancelCause(ctx)
	defer r.life.End(nil)
	ready := make(chan struct{})
	m, c, closed, err := r.engine(rehearsal.Journal{Journal: store, Life: r.life, Serving: sync.OnceFunc(func() { close(ready) })})
	if err != nil {
		return err
	}
	defer closed()
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
	r.drive(ctx, m, n)
	r.life.End(nil)
	select {
	case <-served:
	case <-time.After(r.Limit):
		r.hangs = true
	}
	if r.hangs {
		return nil
	}
	return r.read(store)
}

// drive has the transaction run, or only swept, and waits for its end.
func (r *run) drive(ctx context.Context, m *tcc.Engine, n int64) {
	if r.abandon && n > 1 {
		r.sweeps(ctx, m)
	} else {
		r.begins(ctx, m)
	}
	if r.tardy && !r.hangs {
		r.sweeps(ctx, m)
	}
	r.mu.Lock()
	r.swept = true
	r.mu.Unlock()
	if !r.hangs {
		_, _ = m.Wait(ctx, id)
	}
	if r.tardy && !r.hangs {
		r.sweeps(ctx, m)
	}
}

// begins runs the transaction, and notes what it returns.
func (r *run) begins(ctx context.Context, m *tcc.Engine) {
	within, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	r.quit = func() { quit(errQuit) }
	r.rival = func() {
		_ = r.Run(ctx, m, rivalID)
		_, _ = m.Wait(ctx, rivalID)
	}
	done := make(chan error, 1)
	go func() {
		_, err := rehearsal.Guarded(within, func(ctx context.Context) (any, error) { return nil, r.Run(ctx, m, id) })
		done <- err
	}()
	select {
	case r.said = <-done:
	case <-ctx.Done():
		select {
		case r.said = <-done:
		case <-time.After(r.Limit):
			r.hangs = true
		}
	}
	switch {
	case r.hangs || r.life.Crashed() != nil: // nobody has heard it
	case r.said == nil:
		r.told = append(r.told, tcc.Confirm)
	case errors.Is(r.said, tcc.ErrCancelled):
		r.told = append(r.told, tcc.Cancel)
	}
}

// engine makes the engine of a journal, which serves nothing yet.
func (r *run) engine(store rehearsal.Journal) (*tcc.Engine, *coordinator.Coordinator, func(), error) {
	j, err := journal.New(store, &journal.Options{Shards: 1, Patience: rehearsal.Patience})
	if err != nil {
		return nil, nil, nil, err
	}
	closed := func() { _ = j.Close() }
	o := coordinator.Options{Poll: r.limit() / 1000, Random: func() float64 { return 0.5 }}
	if r.RealTime {
		o.Random = func() float64 { return 0 }
	}
	c, err := coordinator.New(j, &o)
	if err == nil {
		var m *tcc.Engine
		if m, err = tcc.New(c, r.Options, r.stage.defined...); err == nil {
			return m, c, closed, nil
		}
	}
	closed()
	return nil, nil, nil, err
}

// read is how the transaction stands by its journal.
func (r *run) read(store *memory.Journal) error {
	m, _, closed, err := r.engine(rehearsal.Journal{Journal: store, Life: &rehearsal.Life{}})
	if err != nil {
		return err
	}
	defer closed()
	r.outcome, err = m.Look(context.Background(), id)
	if errors.Is(err, tcc.ErrNone) {
		return nil
	}
	return err
}

// limit is how long an engine may take, with what passes while holds expire, twice at
// most.
func (r *run) limit() time.Duration { return r.Limit + 3*r.Options.Hold }
