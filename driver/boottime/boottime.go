// Package boottime is the clock of claims: monotonic, and it also counts while
// the machine is suspended. Drivers keep the time of their leases on it. Outside Linux it is
// Go's monotonic clock, which on most systems stops during a suspend. A lease then seems to last
// longer than it does.
//
//	sent := boottime.Sent() // just before the request leaves
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

// origin keeps readings above zero in a bubble of testing/synctest, where time
// begins at 2000.
const origin = 100 * 365 * 24 * time.Hour

// Now reads the clock. Successive readings never go back. It costs one system call,
// because only the kernel knows whether the machine was suspended a moment ago. Whether
// a deadline has passed is judged by Now only.
func Now() Instant { return system.now() }

// Sent is a time that is not after Now, without a system call: a suspend counts once a
// Now has noticed it. Use it for when a request is sent: a deadline that is counted from
// it is early rather than late. It also does for durations in reports. Never judge by it
// whether a deadline has passed.
func Sent() Instant { return system.sent() }

// Sub is the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Add is t moved by d.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

var system = newClock(kernel{})

// boots are the clocks of the kernel. Boot counts while the machine is suspended,
// monotonic does not; their difference changes by suspends only.
type boots interface {
	boot() time.Duration
	monotonic() time.Duration
}

// clock adds the time spent suspended to Go's monotonic clock.
type clock struct {
	boots
	start time.Time
	floor time.Duration // monotonic at start or shortly before
	// slept is the time spent suspended as last seen. It changes only by more than
	// noise, so that measuring it never moves the clock.
	slept atomic.Int64
}

// noise is the largest change of the time spent suspended that may be an error of
// measuring it.
const noise = time.Millisecond

func newClock(b boots) *clock {
	c := &clock{boots: b}
	for range 8 {
		c.floor = b.monotonic()
		c.start = time.Now()
		if b.monotonic()-c.floor < gap {
			break
		}
	}
	c.slept.Store(int64(c.suspended()))
	return c
}

func (c *clock) sent() Instant {
	return Instant(origin + time.Since(c.start) + time.Duration(c.slept.Load()))
}

// now measures the time spent suspended if the most that it can be has grown. That is the
// boot clock minus the monotonic clock of shortly before, floor included. Virtual time
// says nothing of the kernel's clocks: it is before start.
func (c *clock) now() Instant {
	elapsed, seen := time.Since(c.start), c.slept.Load()
	if elapsed >= 0 && int64(c.boot()-c.floor-elapsed)-seen > int64(noise) {
		if s := int64(c.suspended()); s-seen > int64(noise) {
			c.slept.CompareAndSwap(seen, s)
			seen = max(s, c.slept.Load())
		}
	}
	return Instant(origin + elapsed + time.Duration(seen))
}

// gap is how long the two readings around that of the boot clock may be apart to be
// believed: a stop between them would look like a suspend.
const gap = 50 * time.Microsecond

// suspended is the time this machine has spent suspended since it was booted.
func (c *clock) suspended() time.Duration {
	best := time.Duration(1<<63 - 1)
	var s time.Duration
	for range 8 {
		before := c.monotonic()
		boot := c.boot()
		after := c.monotonic()
		if after-before < best {
			best, s = after-before, boot-before
		}
		if best < gap {
			break
		}
	}
	return s
}
