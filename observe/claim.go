package observe

import (
	"errors"
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

// WithDefaults returns h with hooks that log losses, late releases, failed requests
// and renewals, and claims that are held for long.
func (h *Lock) WithDefaults() *Lock {
	r := copyOf(h)
	OnNil(&r.Renewed, r.Log, warn, whenFailed("lock renewal failed", func(e LockRenewed) error { return e.Err }))
	OnNil(&r.HeldLong, r.Log, warn, always[LockHeldLong]("lock held for long"))
	OnNil(&r.Ended, r.Log, warn, func(e LockEnded) string {
		if errors.Is(e.Cause, interlock.ErrReleased) {
			return ""
		}
		return "lock lost"
	})
	OnNil(&r.RequestFailed, r.Log, warn, always[LockRequestFailed]("lock request failed, it is repeated"))
	OnNil(&r.ReleaseFailed, r.Log, warn, always[LockReleaseFailed]("lock release not confirmed, it is left to expire"))
	OnNil(&r.Restarting, r.Log, warn, always[LockRestarting]("work under a lock failed, it starts again"))
	return r
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

// LogLocks returns hooks that log the events of locks: failures as warnings, as the default
// hooks do, and the rest at debug level. They do not log successful renewals. A nil l means
// slog.Default.
func LogLocks(l *slog.Logger) *Lock {
	h := (&Lock{Log: l}).WithDefaults()
	h.Waiting = func(e LockWaiting) { write(l, slog.LevelDebug, "waiting for lock", e, 0) }
	h.Acquired = func(e LockAcquired) {
		text := "lock acquired"
		if e.Err != nil {
			text = "lock not acquired"
		}
		write(l, slog.LevelDebug, text, e, 0)
	}
	h.HandedOver = func(e LockHandedOver) { write(l, slog.LevelDebug, "lock handed over in process", e, 0) }
	lost := h.Ended
	h.Ended = func(e LockEnded) {
		switch {
		case errors.Is(e.Cause, interlock.ErrReleased):
			write(l, slog.LevelDebug, "lock released", e, 0)
		case lost != nil: // as with Silent
			lost(e)
		}
	}
	return h
}

// RowLock receives the events of row lock scopes. Every hook may be nil. Hooks must return at
// once.
type RowLock struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Locked func(RowsLocked)
	// Slow is called while the scope is still open.
	Slow     func(RowsSlow)
	Released func(RowsReleased)
}

// WithDefaults returns h with a hook that logs rows that are locked for long.
func (h *RowLock) WithDefaults() *RowLock {
	r := copyOf(h)
	OnNil(&r.Slow, r.Log, warn, always[RowsSlow]("rows locked for long"))
	return r
}

// RowsLocked reports that the rows are locked, or could not be.
type RowsLocked struct {
	Table string
	Asked int           // rows that were asked for
	Rows  int           // rows that were locked
	Wait  time.Duration // from the request to the answer
	Err   error
}

// RowsSlow reports that rows are locked for longer than they should be.
type RowsSlow struct {
	Table string
	Rows  int
	Held  time.Duration // so far
	Max   time.Duration // after which the scope is ended
}

// RowsReleased reports that the transaction that held the rows has ended.
type RowsReleased struct {
	Table string
	Rows  int
	Held  time.Duration
	Err   error // nil if it was committed
}

// Partition receives the events of a member's partitions. Every hook may be nil. Group.Do calls
// Refused. A goroutine of the group calls the others, one at a time, in the order of the events.
// Hooks should return at once. A hook that blocks delays later events: at most 65,536 wait, further
// ones are dropped. Group.Leave waits for them; no hook may call it.
type Partition struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Acquired func(PartitionAcquired)
	Draining func(PartitionDraining)
	Released func(PartitionReleased)
	Failed   func(PartitionFailed)
	Refused  func(PartitionRefused)
}

// WithDefaults returns h with hooks that log failures and partitions that drain.
func (h *Partition) WithDefaults() *Partition {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, whenFailed("partition failed", func(e PartitionFailed) error { return e.Err }))
	OnNil(&r.Draining, r.Log, warn, always[PartitionDraining]("partition waits for its work to return"))
	OnNil(&r.Released, r.Log, warn, func(e PartitionReleased) string {
		switch {
		case e.Err != nil:
			return "partition release not confirmed, it is left to expire"
		case e.Cause == nil:
			return "partition lost"
		}
		return ""
	})
	return r
}

// PartitionAcquired reports that this member begins to own a partition.
type PartitionAcquired struct {
	Partition int
	Epoch     interlock.Token
}

// PartitionDraining reports that a partition that this member must release, or has lost, waits
// for unfinished work. It is reported once per TTL while this lasts. Meanwhile no member can
// own the partition, and the layout cannot change.
type PartitionDraining struct {
	Partition int
	Epoch     interlock.Token
	Inside    int           // callers that have not returned
	For       time.Duration // since it should have moved
}

// PartitionReleased reports that this member released a partition, or lost it.
type PartitionReleased struct {
	Partition int
	Epoch     interlock.Token
	Owned     time.Duration
	Drained   time.Duration // wait for unfinished work
	Cause     error         // why it was released, such as the error of its work; nil if it was lost
	Err       error         // of the release
}

// PartitionFailed reports that a partition could not be acquired, or that its work failed. It
// also reports that the group could not be read, or the membership not be kept. The member
// retries.
type PartitionFailed struct {
	Partition int // -1 if it concerns none in particular
	Err       error
}

// PartitionRefused reports a call for a key that this member does not own.
type PartitionRefused struct {
	Key       string
	Partition int
	Epoch     interlock.Token // of the owner, as known here; 0 without one
	Owner     string
}

// Deadlock receives the events of a detector of deadlocks. Every hook may be nil. A goroutine of
// the detector calls hooks one at a time. They should return at once. A hook that blocks delays
// later events: at most 65,536 wait, further ones are dropped. Detector.Close waits for them; no
// hook may call it.
type Deadlock struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Found  func(DeadlockFound)
	Failed func(DeadlockFailed)
}

// WithDefaults returns h with hooks that log deadlocks, and failures to look for them.
func (h *Deadlock) WithDefaults() *Deadlock {
	r := copyOf(h)
	OnNil(&r.Found, r.Log, warn, always[DeadlockFound]("wait ended because of a deadlock"))
	OnNil(&r.Failed, r.Log, warn, always[DeadlockFailed]("deadlock detection failed"))
	return r
}

// DeadlockFound reports that a wait of this process was ended because of a deadlock.
type DeadlockFound struct {
	Task   string // its name
	Awaits string // the name of the resource
	Err    error  // a *deadlock.Error, which lists the cycle
}

// DeadlockFailed reports that waits could not be read or published. Deadlocks over that board
// are not found meanwhile.
type DeadlockFailed struct{ Err error }
