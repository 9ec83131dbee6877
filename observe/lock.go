// Package observe defines the events of Interlock and the hooks that receive them. It stores
// nothing, samples nothing and uses no metrics library; adapters are in other packages.
package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Lock receives the events of locks. Every hook may be nil. A lock calls them one at a time, in
// the order of the events. Acquired, and Ended after a release, are called before the call
// returns that caused the event, unless other events are not reported yet. A goroutine of the
// lock calls the other hooks.
//
// Hooks should return at once. A hook that blocks delays the call that called it, and later
// events: at most 65,536 wait, further ones are dropped. It delays no other caller, no renewal and
// no end of a claim. Close waits for events that are not reported, until its context ends; no hook
// may call it.
type Lock struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
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

// LockWaiting reports that a request has a place in the backend's queue, or a new one.
type LockWaiting struct {
	Name   string
	Owner  string
	Ahead  int    // waiters before this process, the holder not counted; -1 if not known
	Holder string // empty if not known
}

// LockAcquired reports that a caller acquired the lock, or stopped waiting for it.
type LockAcquired struct {
	Name  string
	Owner string
	Token interlock.Token // 0 for advisory locks and failures
	Wait  time.Duration   // from the call to its end
	Err   error           // nil if it was acquired
}

// LockHandedOver reports that a holder passed the lock to the next caller in this process
// without a request to the backend.
type LockHandedOver struct {
	Name  string
	Owner string
	Token interlock.Token // of the new holder; 0 for advisory locks
}

// LockRenewed reports that a renewal succeeded or failed. A failed renewal is not a loss.
type LockRenewed struct {
	Name  string
	Owner string
	Took  time.Duration
	Err   error
}

// LockHeldLong reports that a claim is near its maximum hold time.
type LockHeldLong struct {
	Name  string
	Owner string
	Token interlock.Token // 0 for advisory locks
	Held  time.Duration   // so far
	Max   time.Duration   // when it will be ended
}

// LockEnded reports that a claim ended.
type LockEnded struct {
	Name  string
	Owner string
	Token interlock.Token // 0 for advisory locks
	Held  time.Duration
	Cause error // interlock.ErrReleased, ErrExpired, ErrLost or ErrSessionEnded in its chain
}

// LockRequestFailed reports that a request for the lock failed. The lock retries after a delay,
// unless too many failed in a row or no caller waits.
type LockRequestFailed struct {
	Name   string
	Owner  string
	Failed int // requests in a row, with this one
	Err    error
}

// LockReleaseFailed reports that the backend did not confirm a release in time. The claim
// expires by its lease.
type LockReleaseFailed struct {
	Name  string
	Owner string
	Err   error
}

// LockRestarting reports that Fenced.Keep failed, and starts again after a delay.
type LockRestarting struct {
	Name   string
	Failed int // runs in a row that ended soon, with this one
	Err    error
}
