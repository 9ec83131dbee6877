package driver

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Watcher is an optional interface of a lock driver that signals when to inspect locks again.
// Its signals are hints, not a history: one may represent several changes, or none.
type Watcher interface {
	// Watch calls changed with a name after the holder or the waiters of that name may have
	// changed, until ctx ends. The name starts with prefix; the empty name means any of them.
	// Watch calls changed("") first, once it misses no later change. It calls changed("") again
	// after every interruption in which it may have missed a change. A caller that reads an
	// [Inspector] after each signal sees every state that lasts.
	//
	// The expiry of a holder need not be reported: a waiter inspects the lock again when
	// Contender.Expires has passed.
	//
	// Watch blocks. It returns the cause of ctx, interlock.ErrClosed after Close, or a
	// Retryable error if it cannot watch; then it may be called again. Calls of changed come
	// from one goroutine at a time, and none comes after Watch has returned. changed must
	// return at once.
	Watch(ctx context.Context, prefix string, changed func(name string)) error
}

// MostNames is the most names of locks that a Mailbox keeps for a slow reader.
const MostNames = 1000

// Mailbox collects the names that changed since the last Take, for an implementation of [Watcher].
// Create it with [NewMailbox]. It is safe for concurrent use.
type Mailbox struct {
	prefix string
	most   int
	wake   chan struct{}

	mu     sync.Mutex
	names  map[string]bool
	missed bool
}

// NewMailbox returns a Mailbox of names with prefix. With more than most different names
// it keeps none and counts as missed; 0 means no bound.
func NewMailbox(prefix string, most int) *Mailbox {
	return &Mailbox{prefix: prefix, most: most, wake: make(chan struct{}, 1), names: map[string]bool{}}
}

// Add records that a name changed. The empty name means any name, as for Miss.
func (m *Mailbox) Add(name string) {
	switch {
	case name == "":
		m.Miss()
		return
	case !strings.HasPrefix(name, m.prefix):
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] = true; m.most > 0 && len(m.names) > m.most {
		clear(m.names)
		m.missed = true
	}
	m.Wake()
}

// Miss records that changes may have been missed.
func (m *Mailbox) Miss() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missed = true
	m.Wake()
}

// Wake wakes the reader without a change.
func (m *Mailbox) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Woken returns a channel with a hint after each Add, Miss and Wake.
func (m *Mailbox) Woken() <-chan struct{} { return m.wake }

// Take removes and returns the names in order, and whether any other name may have
// changed too.
func (m *Mailbox) Take() (names []string, missed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names, missed = slices.Sorted(maps.Keys(m.names)), m.missed
	clear(m.names)
	m.missed = false
	return names, missed
}
