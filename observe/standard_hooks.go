package observe

import (
	"errors"
	"log/slog"

	"github.com/interlock-dev/interlock"
)

// WithDefaults of a struct of hooks returns a copy whose nil hooks for failures log.
// It accepts nil. A failure that a caller receives as an error is not logged too,
// except for refusals at the edge of a service.

const (
	warn = slog.LevelWarn
	loud = slog.LevelError // waits for an operator
)

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

// WithDefaults returns h with a hook that logs rows that are locked for long.
func (h *RowLock) WithDefaults() *RowLock {
	r := copyOf(h)
	OnNil(&r.Slow, r.Log, warn, always[RowsSlow]("rows locked for long"))
	return r
}

// WithDefaults returns h with hooks that log deadlocks, and failures to look for them.
func (h *Deadlock) WithDefaults() *Deadlock {
	r := copyOf(h)
	OnNil(&r.Found, r.Log, warn, always[DeadlockFound]("wait ended because of a deadlock"))
	OnNil(&r.Failed, r.Log, warn, always[DeadlockFailed]("deadlock detection failed"))
	return r
}

// WithDefaults returns h with a hook that logs writes that bypassed the guard.
func (h *Fence) WithDefaults() *Fence {
	r := copyOf(h)
	OnNil(&r.Bypassed, r.Log, warn, always[FenceBypassed]("guarded key was written without the guard"))
	return r
}

// WithDefaults returns h with hooks that log leases that are lost or not renewed, and
// unfinished requests without an attempt.
func (h *Idempotency) WithDefaults() *Idempotency {
	r := copyOf(h)
	OnNil(&r.Renewed, r.Log, warn, whenFailed("request lease not renewed", func(e IdempotencyRenewed) error { return e.Err }))
	OnNil(&r.Lost, r.Log, warn, always[IdempotencyLost]("request lease lost during the work"))
	OnNil(&r.Unfinished, r.Log, warn, always[IdempotencyUnfinished]("request unfinished"))
	return r
}

// WithDefaults returns h with hooks that log mismatched messages and failed cleaning.
func (h *Once) WithDefaults() *Once {
	r := copyOf(h)
	OnNil(&r.Mismatched, r.Log, warn, always[OnceMessage]("message repeated with another payload"))
	OnNil(&r.Cleaned, r.Log, warn, whenFailed("inbox not cleaned", func(e OnceCleaned) error { return e.Err }))
	return r
}

// WithDefaults returns h with a hook that logs updates without success.
func (h *Version) WithDefaults() *Version {
	r := copyOf(h)
	OnNil(&r.Exhausted, r.Log, warn, always[VersionExhausted]("update met a conflict at its last attempt"))
	return r
}

// WithDefaults returns h with a hook that logs requests that were refused.
func (h *Wire) WithDefaults() *Wire {
	r := copyOf(h)
	OnNil(&r.Refused, r.Log, warn, always[WireRefused]("request refused"))
	return r
}

// WithDefaults returns h with hooks that log calls that were refused or whose outcome
// is unknown.
func (h *Proxy) WithDefaults() *Proxy {
	r := copyOf(h)
	OnNil(&r.Refused, r.Log, warn, always[ProxyRefused]("call refused"))
	OnNil(&r.Sent, r.Log, warn, whenFailed("call outcome unknown or not recorded", func(e ProxySent) error { return e.Err }))
	return r
}

// WithDefaults returns h with a hook that logs tasks that an executor refused.
func (h *Keyed) WithDefaults() *Keyed {
	r := copyOf(h)
	OnNil(&r.Refused, r.Log, warn, whenFailed("task refused", func(e KeyedRefused) error { return e.Err }))
	return r
}

// WithDefaults returns h with hooks that log gaps that are overdue, holes, keys that
// are halted, and failures.
func (h *Sequence) WithDefaults() *Sequence {
	r := copyOf(h)
	OnNil(&r.Overdue, r.Log, warn, always[SequenceGap]("events overdue"))
	OnNil(&r.Recorded, r.Log, warn, always[SequenceGap]("hole recorded, key continues"))
	OnNil(&r.Halted, r.Log, loud, always[SequenceGap]("key halted until its events come or an operator resumes it"))
	OnNil(&r.Failed, r.Log, warn, whenFailed("sequence failed", func(e SequenceFailed) error { return e.Err }))
	return r
}

// WithDefaults returns h with hooks that log failed messages, pauses and trouble.
func (h *Outbox) WithDefaults() *Outbox {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, func(e OutboxFailed) string {
		if e.Dead {
			return "message became a dead letter"
		}
		return "message not delivered"
	})
	OnNil(&r.Paused, r.Log, warn, whenFailed("outbox paused, its sink delivers nothing", func(e OutboxPaused) error { return e.Err }))
	OnNil(&r.Trouble, r.Log, warn, whenFailed("outbox failed", func(e OutboxTrouble) error { return e.Err }))
	OnNil(&r.Stopped, r.Log, warn, whenFailed("outbox relay stopped", func(e OutboxStopped) error {
		if errors.Is(e.Err, interlock.ErrClosed) {
			return nil // by this process
		}
		return e.Err
	}))
	return r
}
