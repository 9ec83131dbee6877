// Package backoff computes how long to wait before the next attempt: capped
// exponential growth with full jitter (Amazon Architecture Blog, "Exponential
// Backoff and Jitter"). It holds no state.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy bounds the waits. The zero value waits 0.
type Policy struct {
	First time.Duration // bound of the first wait
	Max   time.Duration // bound of every wait
}

// Delay is the wait before attempt n+1, after n failed attempts (n ≥ 1): random·min(Max,
// First·2^(n−1)), and at least an eighth of that bound. random is in [0,1).
func (p Policy) Delay(n int, random float64) time.Duration {
	bound := p.First
	for range n - 1 {
		if bound >= p.Max {
			break
		}
		bound *= 2
	}
	bound = min(bound, p.Max)
	return max(bound/8, time.Duration(random*float64(bound)))
}

// Wait blocks for a random Delay after n failures. It reports false if ctx ended.
func (p Policy) Wait(ctx context.Context, n int) bool {
	return Sleep(ctx, p.Delay(n, rand.Float64()))
}

// Sleep blocks for d. It reports false if ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
