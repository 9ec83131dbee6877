package compare

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Exclusion detects that two clients hold one name at once, or that a token does not rise.
// The zero value is ready. It is safe for concurrent use.
type Exclusion struct {
	names sync.Map // of *held by name
	found atomic.Int64
	mu    sync.Mutex
	first string
}

type held struct {
	inside atomic.Int32
	token  atomic.Uint64
}

// Name returns the checker of a name: the holders call its methods.
func (e *Exclusion) Name(name string) *Checked {
	h, _ := e.names.LoadOrStore(name, &held{})
	return &Checked{e, name, h.(*held)}
}

// Checked is one name of an Exclusion.
type Checked struct {
	exclusion *Exclusion
	name      string
	held      *held
}

// Enter must be called after a lock was acquired. A token of 0 means that the lock has none.
func (c *Checked) Enter(token uint64) {
	if n := c.held.inside.Add(1); n != 1 {
		c.exclusion.add(fmt.Sprintf("%d clients held %q at once", n, c.name))
	}
	if last := c.held.token.Load(); token != 0 && token <= last {
		c.exclusion.add(fmt.Sprintf("token %d of %q was granted after %d", token, c.name, last))
	}
	if token != 0 {
		c.held.token.Store(token)
	}
}

// Leave must be called before the lock is released.
func (c *Checked) Leave() { c.held.inside.Add(-1) }

func (e *Exclusion) add(text string) {
	if e.found.Add(1) == 1 {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.first = text
	}
}

// Violations returns the first violation and the number of others.
func (e *Exclusion) Violations() []string {
	n := e.found.Load()
	if n == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if n == 1 {
		return []string{e.first}
	}
	return []string{fmt.Sprintf("%s, and %d more", e.first, n-1)}
}
