package lock

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
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
		if !restarts.Wait(ctx, max(failed, 1)) {
			return context.Cause(ctx)
		}
	}
}
