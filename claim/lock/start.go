package lock

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Running is work that [Fenced.Start] started. It is safe for concurrent use.
type Running struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
	err   error // of Keep, once ended is closed
}

// Start runs [Fenced.Keep] in a goroutine until [Running.Close]. Of the processes that start
// the same name, one runs fn, and the others stand by:
//
//	sweeps := locks.Start("sweeps", lock.Every(time.Minute, deleteOldKeys, releaseOldHolds))
//	defer sweeps.Close(ctx)
func (f *Fenced) Start(name string, fn func(ctx context.Context, c interlock.Claim) error) *Running {
	ctx, stop := context.WithCancelCause(context.Background())
	r := &Running{stop: stop, ended: make(chan struct{}), err: failure.ErrNoReturn}
	go func() { // until Close
		defer close(r.ended)
		r.err = f.Keep(ctx, name, fn)
	}()
	return r
}

// Ended returns a channel that is closed when the work has ended: after Close, after fn has
// returned nil or ended its goroutine, or after an error that Keep does not retry. Close returns
// that error.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Close cancels the context of the work. It blocks until the work has returned and the lock is
// released, or until ctx ends; then it returns the cause of ctx.
func (r *Running) Close(ctx context.Context) error {
	r.stop(interlock.ErrClosed)
	select {
	case <-r.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.err == interlock.ErrClosed {
		return nil
	}
	return r.err
}

// Every returns work for [Fenced.Keep] and [Fenced.Start] that calls fns one after the other.
// It does so at once and then in every interval, until its context ends. The interval counts
// from the end of the last call and must be above 0. If calls fail, the others still run. Then
// the work returns their errors, so that Keep reports them and starts the work again.
func Every(interval time.Duration, fns ...func(ctx context.Context) error) func(ctx context.Context, c interlock.Claim) error {
	return func(ctx context.Context, _ interlock.Claim) error {
		pause := time.NewTimer(0)
		defer pause.Stop()
		for {
			select {
			case <-pause.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			errs := make([]error, len(fns))
			for i, fn := range fns {
				errs[i] = fn(ctx)
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			pause.Reset(interval)
		}
	}
}
