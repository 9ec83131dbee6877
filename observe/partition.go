package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

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
	Cause     error         // why it must be released; nil if it was lost or its work failed
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
