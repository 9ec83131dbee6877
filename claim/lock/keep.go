package lock

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// restarts bounds the pauses of [Fenced.Keep]. A run that lasted for Max or longer starts
// the sequence of pauses again.
var restarts = backoff.Policy{First: 200 * time.Millisecond, Max: 30 * time.Second}

// Keep runs fn under the lock on name until ctx ends, as repeated calls of [Fenced.Do]. If the
// claim is lost, fn fails, or the lock cannot be acquired, Keep reports that to
// Hooks.Restarting. It then waits with capped exponential backoff and jitter (200 ms to 30 s).
// After that it acquires the lock again and calls fn with a new claim and a larger token. Use
// it for work that one of several processes does while the others stand by:
//
//	go locks.Keep(ctx, "outbox", relay.RunAll)
//
// Keep blocks. It returns nil once fn has returned nil under a claim that still held. Once ctx
// has ended and fn has returned, it returns the cause of ctx. If the error is a Bug, Keep
// returns it at once: the name is invalid, ctx already holds name, the lock is closed, or fn
// returned a Bug.
func (f *Fenced) Keep(ctx context.Context, name string, fn func(ctx context.Context, c interlock.Claim) error) error {
	for failed := 1; ; failed++ {
		began, ran := boottime.Now(), false
		err := f.Do(ctx, name, func(ctx context.Context, c interlock.Claim) error {
			ran = true
			return fn(ctx, c)
		})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case interlock.Kind(err) == interlock.Bug:
			return err
		}
		if boottime.Now().Sub(began) >= restarts.Max {
			failed = 1
		}
		if !ran && errors.Is(err, interlock.ErrHeld) { // Options.Wait has passed: it still stands by
			failed = 0
		} else {
			report.Add(&f.l.reports, nil, f.l.options.Hooks.Restarting, observe.LockRestarting{Name: name, Failed: failed, Err: err})
		}
		waiting, stop := join.Context(ctx, f.l.ctx) // after Close, Do returns its error
		restarts.Wait(waiting, max(failed, 1))
		stop()
	}
}

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
