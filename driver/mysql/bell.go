package mysql

import "sync"

// bell wakes the waiters of this process when a name was released in it.
type bell struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]bool // by name
}

func newBell() *bell { return &bell{waiting: map[string]map[chan struct{}]bool{}} }

// enter gives a channel that is told, until leave.
func (b *bell) enter(name string) (woken <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting[name] == nil {
		b.waiting[name] = map[chan struct{}]bool{}
	}
	b.waiting[name][c] = true
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.waiting[name], c)
		if len(b.waiting[name]) == 0 {
			delete(b.waiting, name)
		}
	}
}

// ring wakes one who waits for name: only one can get it.
func (b *bell) ring(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.waiting[name] {
		signal(c)
		return
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
