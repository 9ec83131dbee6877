// Package observe is how Interlock tells what it does: structs of events and
// hooks that receive them. It keeps nothing, samples nothing and knows no
// metrics library; adapters live elsewhere.
package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Lock receives what happens to locks. Every hook may be nil. Hooks are called
// synchronously, some with internal state held: they must return at once and
// must not call the lock that reports.
type Lock struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Waiting    func(LockWaiting)
	Acquired   func(LockAcquired)
	HandedOver func(LockHandedOver)
	Renewed    func(LockRenewed)
	HeldLong   func(LockHeldLong)
	Ended      func(LockEnded)

	RequestFailed func(LockRequestFailed)
	ReleaseFailed func(LockReleaseFailed)
	Restarting    func(LockRestarting)
}

// LockWaiting: a request has a place in the backend's queue, or a new one.
type LockWaiting struct {
	Name   string
	Owner  string
	Ahead  int    // waiters before this process, the holder not counted; -1 if not known
	Holder string // empty if not known
}

// LockAcquired: a caller got the lock, or gave up waiting for it.
type LockAcquired struct {
	Name  string
	Owner string
	Token interlock.Token // 0 for advisory locks and failures
	Wait  time.Duration   // from the call to its end
	Err   error           // nil if it was acquired
}

// LockHandedOver: a holder passed the lock to the next caller in this process
// without asking the backend.
type LockHandedOver struct {
	Name  string
	Owner string
	Token interlock.Token // of the new holder; 0 for advisory locks
}

// LockRenewed: a renewal was answered or failed. A failed renewal is not a loss.
type LockRenewed struct {
	Name  string
	Owner string
	Took  time.Duration
	Err   error
}

// LockHeldLong: a claim comes near the longest time that it may be held.
type LockHeldLong struct {
	Name  string
	Owner string
	Token interlock.Token // 0 for advisory locks
	Held  time.Duration   // so far
	Max   time.Duration   // when it will be ended
}

// LockEnded: a claim ended.
type LockEnded struct {
	Name  string
	Owner string
	Token interlock.Token // 0 for advisory locks
	Held  time.Duration
	Cause error // interlock.ErrReleased, ErrExpired, ErrLost or ErrSessionEnded in its chain
}

// LockRequestFailed: a request for the lock failed. It is repeated after a pause,
// unless too many have failed in a row or nobody waits any more.
type LockRequestFailed struct {
	Name   string
	Owner  string
	Failed int // requests in a row, with this one
	Err    error
}

// LockReleaseFailed: the backend did not confirm a release in time. What was
// held is left to expire.
type LockReleaseFailed struct {
	Name  string
	Owner string
	Err   error
}

// LockRestarting: Fenced.Keep failed, and starts again after a pause.
type LockRestarting struct {
	Name   string
	Failed int // runs in a row that ended soon, with this one
	Err    error
}
