package tcctest

import (
	"sync"
	"time"

	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

// A World has the state of fakes of participants: values by keys, in memory. The zero value is
// empty and ready. It is safe for concurrent use.
type World struct {
	mu     sync.Mutex
	values Values
	holds  map[owner]*hold
	order  []owner // in the order of their tries
}

// owner identifies the branch of a hold.
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

// Values has the values of a [World], within an effect. A missing value is empty.
type Values map[string]string

// Add adds to the number of a key, from 0, and returns the sum. It panics if the value is not
// a number.
func (v Values) Add(key string, n int) int { return rehearsal.Values(v).Add(key, n) }

// Set sets the value of a key; an empty one removes it. It has no guard: use it before the
// transaction begins.
func (w *World) Set(key, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values = w.draft()
	w.values[key] = value
}

// Get returns the value of a key, or "".
func (w *World) Get(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

// Snapshot returns the values, one a line, in the order of their keys, for [Scene.Snapshot]. It
// omits those that are empty or 0, which Add does not distinguish from missing ones.
func (w *World) Snapshot() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rehearsal.Values(w.values).Text()
}

// draft returns a copy of the values that can be changed.
func (w *World) draft() Values { return Values(rehearsal.Values(w.values).Draft()) }
