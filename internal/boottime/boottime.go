// Package boottime reads a monotonic clock that also counts while the machine
// is suspended, and computes lease deadlines on it. Outside Linux it falls back
// to Go's monotonic clock, which stops during a suspend on most systems.
//
// The clock is Go's own monotonic time plus the time spent suspended, so it
// follows the virtual time of testing/synctest.
package boottime

import (
	"sync/atomic"
	"time"
)

// An Instant is a reading of the clock. Only differences mean anything. Readings
// are above zero, so that the zero Instant can stand for "never".
type Instant time.Duration

var start = time.Now()

// origin keeps readings above zero in a bubble of testing/synctest, where time
// begins at 2000.
const origin = 100 * 365 * 24 * time.Hour

// slept is the time spent suspended as last seen. It changes only by more than
// a millisecond, so that the noise of measuring it never moves the clock.
var slept atomic.Int64

// Now reads the clock. Successive readings never go back.
func Now() Instant {
	seen := slept.Load()
	if s := int64(suspended()); s-seen > int64(time.Millisecond) {
		slept.CompareAndSwap(seen, s)
		seen = max(s, slept.Load())
	}
	return Instant(origin + time.Since(start) + time.Duration(seen))
}

// Sub is the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Add is t moved by d.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// drift is how much faster than ours the backend's clock may run, as one part
// in so many: 1 %.
const drift = 100

// Deadline is when a lease of length ttl, asked for at sent, must no longer be
// relied on: sent + ttl·(1−drift). sent is read just before the request leaves.
func Deadline(sent Instant, ttl time.Duration) Instant {
	return sent.Add(ttl - ttl/drift)
}
