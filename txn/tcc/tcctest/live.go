package tcctest

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// The ids of the transactions of each run.
const (
	id      = "explored"
	rivalID = "explored by another"
)

// live is one engine from its start to its crash, to the end of the transaction, or
// until the time of the run is up.
func (r *run) live(store *memory.Journal, n int64) error {
	var m *tcc.Engine
	open := func(_ context.Context, j rehearsal.Journal) (c *coordinator.Coordinator, closed func(), err error) {
		m, c, closed, err = r.engine(j)
		return c, closed, err
	}
	_, err := r.Live(n, r.limit(), r.Limit, rehearsal.Journal{Journal: store}, open, func(ctx context.Context) { r.drive(ctx, m, n) })
	if err != nil || r.Hangs {
		return err
	}
	return r.read(store)
}

// drive has the transaction run, or only swept, and waits for its end.
func (r *run) drive(ctx context.Context, m *tcc.Engine, n int64) {
	if r.Abandon && n > 1 {
		r.sweeps(ctx, m)
	} else {
		r.begins(ctx, m)
	}
	if r.Tardy && !r.Hangs {
		r.sweeps(ctx, m)
	}
	r.Mu.Lock()
	r.swept = true
	r.Mu.Unlock()
	if !r.Hangs {
		_, _ = m.Wait(ctx, id)
	}
	if r.Tardy && !r.Hangs {
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
		_, err := rehearsal.CatchPanic(within, func(ctx context.Context) (any, error) { return nil, r.Run(ctx, m, id) })
		done <- err
	}()
	select {
	case r.said = <-done:
	case <-ctx.Done():
		select {
		case r.said = <-done:
		case <-time.After(r.Limit):
			r.Hangs = true
		}
	}
	switch {
	case r.Hangs || r.Life.Crashed() != nil: // nobody has heard it
	case r.said == nil:
		r.told = append(r.told, tcc.Confirm)
	case errors.Is(r.said, tcc.ErrCancelled):
		r.told = append(r.told, tcc.Cancel)
	}
}

// engine makes the engine of a journal, which serves nothing yet.
func (r *run) engine(j driver.Journal) (*tcc.Engine, *coordinator.Coordinator, func(), error) {
	c, closed, err := rehearsal.Open(j, coordinator.Options{Poll: r.limit() / 1000}, r.RealTime)
	if err != nil {
		return nil, nil, nil, err
	}
	m, err := tcc.New(c, r.Options, r.stage.defined...)
	if err != nil {
		closed()
	}
	return m, c, closed, err
}

// read is how the transaction stands by its journal.
func (r *run) read(store *memory.Journal) error {
	m, _, closed, err := r.engine(store)
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
