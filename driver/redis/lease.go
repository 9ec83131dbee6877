package redis

import (
	"sync"
	"time"

	"github.com/interlock-dev/interlock/internal/boottime"
)

// lease is a deadline that renewals move, until it is seen to have passed: from
// then on it stays ended, whatever answers come late.
type lease struct {
	mu       sync.Mutex
	deadline boottime.Instant
	ended    bool
}

func newLease(sent boottime.Instant, ttl time.Duration) *lease {
	return &lease{deadline: boottime.Deadline(sent, ttl)}
}

// Remaining is the time until the claim may belong to someone else.
func (l *lease) Remaining() time.Duration { return l.remaining(boottime.Now()) }

func (l *lease) remaining(now boottime.Instant) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.deadline.Sub(now)
	if left <= 0 {
		l.ended = true
	}
	if l.ended {
		return min(left, 0)
	}
	return left
}

// extend moves the deadline to what a renewal sent at sent allows, never back.
func (l *lease) extend(sent boottime.Instant, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = max(l.deadline, boottime.Deadline(sent, ttl))
}

// end ends it now.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}
