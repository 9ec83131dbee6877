package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Partition receives what happens to the partitions of a member. Every hook may be
// nil. Hooks must return at once and must not call the group that reports.
type Partition struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Acquired func(PartitionAcquired)
	Draining func(PartitionDraining)
	Released func(PartitionReleased)
	Failed   func(PartitionFailed)
	Refused  func(PartitionRefused)
}

// PartitionAcquired: this member owns a partition from now on.
type PartitionAcquired struct {
	Partition int
	Epoch     interlock.Token
}

// PartitionDraining: a partition that this member is to give up, or has lost, waits for
// work that has not returned. It is reported once for every TTL that this lasts:
// meanwhile nobody can own the partition, nor can the layout change.
type PartitionDraining struct {
	Partition int
	Epoch     interlock.Token
	Inside    int           // how many callers have not returned
	For       time.Duration // since it should have moved
}

// PartitionReleased: this member gave a partition up, or lost it.
type PartitionReleased struct {
	Partition int
	Epoch     interlock.Token
	Owned     time.Duration
	Drained   time.Duration // how long work under way was waited for
	Cause     error         // why it is not wanted any more; nil if it was lost or its work failed
	Err       error         // of the release
}

// PartitionFailed: a partition could not be had, or its work failed; or the group could
// not be looked at, or the membership not be kept. It is tried again.
type PartitionFailed struct {
	Partition int // -1 if it concerns none in particular
	Err       error
}

// PartitionRefused: somebody brought a key to a member that does not own it.
type PartitionRefused struct {
	Key       string
	Partition int
	Epoch     interlock.Token // of the owner, as far as is known here; 0 if nobody
	Owner     string
}
