// Package join makes a context end with a second one, and a wait end with a context. It
// copies no values of the second context.
package join

import (
	"context"
)

// Context returns ctx that also ends when other ends, with other's cause. stop releases
// both; call it when the result is no longer used.
func Context(ctx, other context.Context) (joined context.Context, stop func()) {
	joined, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() { unhook(); cancel(nil) }
}

// Wait calls wait, and returns when that returns, or with the cause of ctx if ctx ends
// first. Then wait continues in a goroutine.
func Wait(ctx context.Context, wait func()) error {
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
