package hints

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// MostNames is how many different names a Mailbox of names of locks keeps for a slow
// reader.
const MostNames = 1000

// Mailbox collects the names that changed since its reader last looked. Create it with
// [NewMailbox]. It is safe for concurrent use.
type Mailbox struct {
	prefix string
	most   int
	wake   chan struct{}

	mu     sync.Mutex
	names  map[string]bool
	missed bool
}

// NewMailbox collects names that begin with prefix. With more than most different ones it
// keeps none and counts as missed; 0 is no bound.
func NewMailbox(prefix string, most int) *Mailbox {
	return &Mailbox{prefix: prefix, most: most, wake: make(chan struct{}, 1), names: map[string]bool{}}
}

// Add notes that a name changed.
func (m *Mailbox) Add(name string) {
	if !strings.HasPrefix(name, m.prefix) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] = true; m.most > 0 && len(m.names) > m.most {
		clear(m.names)
		m.missed = true
	}
	Signal(m.wake)
}

// Miss notes that changes may have been missed.
func (m *Mailbox) Miss() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missed = true
	Signal(m.wake)
}

// Wake has the reader look although nothing was noted.
func (m *Mailbox) Wake() { Signal(m.wake) }

// Woken receives a hint after each Add, Miss and Wake.
func (m *Mailbox) Woken() <-chan struct{} { return m.wake }

// Take removes and returns what was noted: the names in order, and whether any other
// name may have changed too.
func (m *Mailbox) Take() (names []string, missed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names, missed = slices.Sorted(maps.Keys(m.names)), m.missed
	clear(m.names)
	m.missed = false
	return names, missed
}
