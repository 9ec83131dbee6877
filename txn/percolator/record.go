package percolator

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/timestamp"
)

// Timestamp is [timestamp.Timestamp].
type Timestamp = timestamp.Timestamp

// kind is what a transaction does to a key.
type kind string

const (
	put      kind = "put"
	remove   kind = "delete"
	lockOnly kind = "lock"   // ForUpdate: it conflicts as a write does, and changes nothing
	status   kind = "status" // a version whose value was dropped; see trim
)

// A record is all that the store has of one key. Each step makes a new record: what
// slices and pointers refer to is never changed.
type record struct {
	Format  int     `json:"format"` // recordFormat
	Lock    *lock   `json:"lock,omitempty"`
	Writes  []write `json:"writes,omitempty"` // newest commit first
	Aborted aborts  `json:"aborted,omitempty"`
	// Safe is the oldest snapshot that can be read here. Transactions that began below it
	// cannot lock the key any more.
	Safe Timestamp `json:"safe,omitempty"`
}

// A lock is the uncommitted write of a transaction.
type lock struct {
	Start   Timestamp `json:"start"` // identifies the transaction
	Primary string    `json:"primary"`
	Store   string    `json:"store"` // identity of the primary's store
	Kind    kind      `json:"kind"`
	Value   []byte    `json:"value,omitempty"`
	Expires Timestamp `json:"expires"` // by the oracle's time; heartbeats raise that of the primary alone
	// MinCommit is the lowest commit timestamp that is allowed, which readers raise so as
	// not to wait. It counts in the primary alone.
	MinCommit Timestamp `json:"min_commit,omitempty"`
	// Alone says that no other lock depends on the fate of this one.
	Alone bool `json:"alone,omitempty"`
}

// A write is a committed version.
type write struct {
	Commit  Timestamp `json:"commit"`
	Start   Timestamp `json:"start"`
	Kind    kind      `json:"kind"`
	Value   []byte    `json:"value,omitempty"`
	Primary bool      `json:"primary,omitempty"` // other locks may depend on this record
}

// aborts are the start timestamps of transactions that were rolled back here, in
// ascending order: the tombstones that refuse their late prewrites. They are apart from
// the versions so that no commit timestamp can hide one.
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

// from drops those below safe.
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

// empty reports whether the record says no more than that old transactions came too late.
func (r record) empty() bool { return r.Lock == nil && len(r.Writes) == 0 && len(r.Aborted) == 0 }

const recordFormat = 1

var errFormat = errors.New("the record is of another format or damaged")

func (r record) encode() []byte {
	r.Format = recordFormat
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // no field can fail
	}
	return text
}

// decode reads a record; none is the zero record.
func decode(data []byte) (r record, err error) {
	if data == nil {
		return r, nil
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%w: %w", errFormat, err)
	}
	if r.Format != recordFormat {
		return r, fmt.Errorf("%w: format %d, known is %d", errFormat, r.Format, recordFormat)
	}
	return r, nil
}
