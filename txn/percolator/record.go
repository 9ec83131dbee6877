package percolator

import (
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/timestamp"
)

// Timestamp is [timestamp.Timestamp].
type Timestamp = timestamp.Timestamp

// kind is a transaction's operation on a key.
type kind uint8

// The numbers are part of the record's encoding.
const (
	put      kind = 0
	remove   kind = 1
	lockOnly kind = 2 // ForUpdate: it conflicts like a write, and changes nothing
	status   kind = 3 // a version whose value was dropped; see trim
)

// A record is the stored state of one key. Each step makes a new record, and never changes
// the targets of slices and pointers.
type record struct {
	Lock    *lock
	Writes  []write // newest commit first
	Aborted aborts
	// Safe is the oldest snapshot that can be read here. Transactions that began below it
	// cannot lock the key any more.
	Safe Timestamp
}

// A lock is the uncommitted write of a transaction.
type lock struct {
	Start   Timestamp // identifies the transaction
	Primary string
	Store   string // identity of the primary's store
	Kind    kind
	Alone   bool // no other lock depends on the fate of this one
	Value   []byte
	Expires Timestamp // by the oracle's time; heartbeats raise that of the primary alone
	// MinCommit is the lowest allowed commit timestamp. Readers raise it instead of
	// waiting. It counts in the primary alone.
	MinCommit Timestamp
	// FirstPush and LastPush are when readers raised MinCommit, by the oracle's time.
	FirstPush, LastPush Timestamp
}

// Bounds of the time for which readers delay a commit, and then wait for it.
const (
	freeDelay = time.Second / 2
	maxWait   = 30 * time.Second
)

// delay returns for how long readers have delayed the commit.
func (l *lock) delay() time.Duration { return l.LastPush.Sub(l.FirstPush) }

// starves reports whether readers wait at now instead of raising MinCommit again: after they have
// delayed the commit for long, they leave it alone for as long as that. So it succeeds,
// however often they come.
func (l *lock) starves(now Timestamp) bool {
	return l.delay() >= freeDelay && now.Sub(l.LastPush) < min(l.delay(), maxWait)
}

// pushed returns the lock with a commit timestamp above push and, after a wait, above the
// snapshots of all that waited.
func (l lock) pushed(push, now Timestamp) *lock {
	l.MinCommit = push + 1
	if l.delay() >= freeDelay {
		l.MinCommit = max(l.MinCommit, now)
	}
	if l.LastPush = now; l.FirstPush == 0 {
		l.FirstPush = now
	}
	return &l
}

// A write is a committed version.
type write struct {
	Commit  Timestamp
	Start   Timestamp
	Kind    kind
	Primary bool // other locks may depend on this record
	Value   []byte
}

// aborts are the start timestamps of transactions that were rolled back here, in
// ascending order: the tombstones that refuse their late prewrites. They are separate from
// the versions, so that no commit timestamp can hide one.
type aborts []Timestamp

func (a aborts) has(start Timestamp) bool {
	_, found := slices.BinarySearch(a, start)
	return found
}

func (a aborts) with(start Timestamp) aborts {
	at, found := slices.BinarySearch(a, start)
	if found {
		return a
	}
	return slices.Insert(slices.Clone(a), at, start)
}

// from returns those not below safe.
func (a aborts) from(safe Timestamp) aborts {
	at, _ := slices.BinarySearch(a, safe)
	return a[at:]
}

// heldBy reports whether the transaction of start has the lock.
func (r record) heldBy(start Timestamp) bool { return r.Lock != nil && r.Lock.Start == start }

// committed returns the commit timestamp of a transaction; 0 if none is known.
func (r record) committed(start Timestamp) Timestamp {
	for _, w := range r.Writes {
		if w.Start == start {
			return w.Commit
		}
	}
	return 0
}

// newest returns the commit timestamp of the last transaction.
func (r record) newest() Timestamp {
	if len(r.Writes) == 0 {
		return 0
	}
	return r.Writes[0].Commit
}

// empty reports whether the record contains nothing but its safe point.
func (r record) empty() bool { return r.Lock == nil && len(r.Writes) == 0 && len(r.Aborted) == 0 }
