package join

import "context"

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
