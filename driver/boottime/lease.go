package boottime

import (
	"sync"
	"time"
)

// drift is how much faster than ours the backend's clock may run, as one part
// in so many: 1 %.
const drift = 100

// Deadline is when a lease of length ttl, asked for at sent, must no longer be
// relied on: sent + ttl·(1−drift). sent is read just before the request leaves.
func Deadline(sent Instant, ttl time.Duration) Instant {
	return sent.Add(ttl - ttl/drift)
}

// Lease is the time that a driver was granted, and a driver.Lease. Renewals
// move its deadline until it has passed; from then on it stays ended, whatever
// answers come late. It is safe for concurrent use.
type Lease struct {
	whole    *Lease // of a part; its deadline counts
	mu       sync.Mutex
	deadline Instant
	ended    bool
}

// NewLease begins a lease of length ttl that was asked for at sent and granted.
func NewLease(sent Instant, ttl time.Duration) *Lease {
	return &Lease{deadline: Deadline(sent, ttl)}
}

// Remaining is the time until the claim may belong to someone else; zero or
// less once that time has come.
func (l *Lease) Remaining() time.Duration { return l.RemainingAt(Now()) }

// RemainingAt is Remaining for a clock that was read already.
func (l *Lease) RemainingAt(now Instant) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remaining(now)
}

func (l *Lease) remaining(now Instant) time.Duration {
	left := l.deadline.Sub(now)
	if l.whole != nil {
		left = l.whole.RemainingAt(now)
	}
	l.ended = l.ended || left <= 0
	if l.ended {
		return min(left, 0)
	}
	return left
}

// Renew moves the deadline to what a renewal that was sent at sent allows, never
// back. It reports false, and changes nothing, if the lease has ended, whether
// or not anyone looked.
func (l *Lease) Renew(sent Instant, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remaining(Now()) <= 0 {
		return false
	}
	l.deadline = max(l.deadline, Deadline(sent, ttl))
	return true
}

// Part returns a lease that lives as long as l, and can end before by its own End. It is
// renewed by renewals of l, not by its own Renew.
func (l *Lease) Part() *Lease { return &Lease{whole: l} }

// End ends the lease now, because it is known to be lost.
func (l *Lease) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}
