// Package hints passes on hints that something may have changed, inside one process. A
// hint carries no data and may be wrong: who gets one looks for itself. Hints are not a
// queue: several of them become one, and a sender never blocks.
package hints

import "sync"

// Signal puts a hint into a channel of capacity 1, unless there is one.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Waiters wakes those who wait for a name. The zero value is ready to use, by many
// goroutines at once.
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

// Wake wakes all who wait for the name, and everyone if it is empty.
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
