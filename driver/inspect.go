package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// Inspector is an optional interface of a lock driver that shows holders and waiters. It
// includes locks of other clients that share the layout. It acquires no lock and changes
// nothing.
type Inspector interface {
	// Locks lists up to limit names that start with prefix and are held or waited for, in byte
	// order. The result more reports whether there are others. Locks and Lock show every
	// current grant that an Acquire of any process had returned before the call. So a process
	// that has just acquired sees itself and all contenders before it.
	Locks(ctx context.Context, prefix string, limit int) (locks []LockState, more bool, err error)
	// Lock returns the state of one name. If the name has no holder and no waiters, Holder is
	// nil and the error is nil.
	Lock(ctx context.Context, name string) (LockState, error)
}

// LockState is the state of one name at one instant, as the backend shows it.
type LockState struct {
	Name    string
	Holder  *Contender  // nil if the name is free
	Waiters []Contender // in queue order if the backend has one
}

// Contender is a holder or a waiter.
type Contender struct {
	Owner string          // for a foreign client, as far as its layout identifies it
	Token interlock.Token // 0 for a waiter, or if the lock has no tokens
	// Since is when the holder was granted the lock or the waiter arrived, by the backend's
	// clock. It is zero if the backend does not record it.
	Since time.Time
	// Expires is how long the backend keeps the entry without renewal. It is 0 if the entry
	// does not expire or if the time is not known.
	Expires time.Duration
	// Foreign reports that another client wrote the entry, in a layout that Interlock shares.
	Foreign bool
}

// NextExpiry returns how soon the first holder's entry expires without renewal; 0 if none does, or
// if no time is known.
func NextExpiry(locks []LockState) (next time.Duration) {
	for _, l := range locks {
		if h := l.Holder; h != nil && h.Expires > 0 && (next == 0 || h.Expires < next) {
			next = h.Expires
		}
	}
	return next
}

// Breaker is an optional interface of a lock driver that takes a lock away from its holder. An
// operator uses it if the holder will not come back. It does not stop the holder's work: only a
// guard rejects the holder's later writes.
type Breaker interface {
	// Break ends the hold of b.Owner on b.Name and records b durably, in one atomic step. If
	// the backend cannot do both in one step, b is recorded first; the driver's package
	// documents that. The next grant has a higher token. The holder sees the break as a lost
	// lease.
	//
	// If b.Owner does not hold b.Name now, ok is false and nothing was done or recorded; the
	// operator must look again. After an Uncertain error the call may be repeated; ok is false
	// once the hold has ended.
	Break(ctx context.Context, b Break) (record BreakRecord, ok bool, err error)
	// Breaks returns at most limit records of name, or of every name if name is empty, newest
	// first. The driver defines how long it keeps records.
	Breaks(ctx context.Context, name string, limit int) ([]BreakRecord, error)
}

// Break is a request for a forced release.
type Break struct {
	Name   string
	Owner  string // the holder to remove, as Inspector shows it
	Reason string // for people; 1 to MaxName bytes
	By     string // the operator; 1 to MaxName bytes
}

// Validate checks all but the name, of which each driver has its own limits.
func (b Break) Validate() error {
	if b.Owner == "" {
		return errors.New("the owner is missing: it is the holder as Inspector shows it")
	}
	for _, text := range []struct{ what, text string }{{"reason", b.Reason}, {"author", b.By}} {
		if text.text == "" || len(text.text) > MaxName {
			return fmt.Errorf("the %s has %d bytes, 1 to %d are allowed", text.what, len(text.text), MaxName)
		}
	}
	return nil
}

// ValidateUTF8 checks what [Break.Validate] does, and that all texts are UTF-8.
func (b Break) ValidateUTF8() error {
	for _, text := range []string{b.Owner, b.Reason, b.By} {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%q is not UTF-8", text)
		}
	}
	return b.Validate()
}

// A BreakRecord is the record of a forced release.
type BreakRecord struct {
	Break
	Token interlock.Token // of the ended hold; 0 if it had none
	At    time.Time       // by the backend's clock
}

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
