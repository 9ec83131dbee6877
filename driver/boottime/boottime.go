// Package boottime is the clock of claims: monotonic, and it also counts while
// the machine is suspended. Drivers keep the time of their leases on it. Outside
// Linux it falls back to Go's monotonic clock, which stops during a suspend on
// most systems, so that a lease seems to last longer than it does.
//
//	sent := boottime.Now() // just before the request leaves
//	…
//	lease := boottime.NewLease(sent, ttl) // when it was granted
//	…
//	lease.Renew(sentAgain, ttl)
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
