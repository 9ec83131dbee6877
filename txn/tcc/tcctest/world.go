package tcctest

import (
	"sync"
	"time"

	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

// A World is values by keys, on which fakes of participants are built. It is in memory,
// and no real system. The zero value is empty and ready. It is safe for concurrent use.
type World struct {
	mu     sync.Mutex
	values Values
	holds  map[owner]*hold
	order  []owner // as they were tried
}

// owner is whose a hold is.
type owner struct{ transaction, branch string }

// hold is the outcome of a branch.
type hold struct {
	state string // held, confirmed, cancelled or refused
	until time.Time
	is    any
	err   error
}

const (
	held      = "held"
	confirmed = "confirmed"
	cancelled = "cancelled"
	refusal   = "refused"
)

// Values is what a [World] contains, within an effect. A key without a value has the
// empty one.
type Values map[string]string

// Add adds to the number of a key, from 0, and gives the sum. It panics if the value is
// no number.
func (v Values) Add(key string, n int) int { return rehearsal.Values(v).Add(key, n) }

// Set gives a key its value; an empty one removes it. Nothing guards it: it is for the
// scene, before the transaction begins.
func (w *World) Set(key, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values = w.draft()
	w.values[key] = value
}

// Get is the value of a key; empty if it has none.
func (w *World) Get(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

// Snapshot is the values, one a line, in the order of their keys, for
// [Scene.Snapshot]. One that is empty or 0 is not shown: to Add it is the same as none.
func (w *World) Snapshot() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rehearsal.Values(w.values).Text()
}

// draft is the values, to be changed.
func (w *World) draft() Values { return Values(rehearsal.Values(w.values).Draft()) }
