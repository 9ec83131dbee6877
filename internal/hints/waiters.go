// Package hints passes hints that something may have changed, inside one process. A
// hint carries no data and may be wrong: its receiver checks the state. Hints are not a
// queue: several become one, and a sender never blocks.
package hints

import "sync"

// Signal sends a hint to a channel of capacity 1, unless it has one.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Waiters wakes the waiters of a name. The zero value is ready. It is safe for
// concurrent use.
type Waiters struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]bool
}

// Enter returns a channel that receives a hint after each [Waiters.Wake] of the name,
// until leave is called.
func (w *Waiters) Enter(name string) (woken <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[string]map[chan struct{}]bool{}
	}
	if w.waiting[name] == nil {
		w.waiting[name] = map[chan struct{}]bool{}
	}
	w.waiting[name][c] = true
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting[name], c)
		if len(w.waiting[name]) == 0 {
			delete(w.waiting, name)
		}
	}
}

// Wake wakes the waiters of the name; of all names if it is empty.
func (w *Waiters) Wake(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name != "" {
		wake(w.waiting[name])
		return
	}
	for _, all := range w.waiting {
		wake(all)
	}
}

func wake(all map[chan struct{}]bool) {
	for c := range all {
		Signal(c)
	}
}
