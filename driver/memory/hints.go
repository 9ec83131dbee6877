package memory

import (
	"context"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// maxPending is how many names one Watch keeps for a caller that is slower than
// the changes; beyond that it says that any name may have changed.
const maxPending = 1000

// watch is one call of Watch. Its fields are guarded by the space's mutex.
type watch struct {
	prefix  string
	pending map[string]bool // names to be told; "" is any
	told    chan struct{}   // there is something pending; capacity 1
}

func (w *watch) add(name string) {
	if !strings.HasPrefix(name, w.prefix) {
		return
	}
	w.pending[name] = true
	if len(w.pending) > maxPending {
		w.pending = map[string]bool{"": true}
	}
	w.wake()
}

func (w *watch) wake() {
	select {
	case w.told <- struct{}{}:
	default:
	}
}

// announce tells every watch what the last step of the table changed. The mutex
// is held.
func (s *Space) announce() {
	for name := range s.table.takeTouched() {
		for w := range s.watches {
			w.add(name)
		}
	}
}

// watch begins one: from here on nothing is missed.
func (s *Space) watch(prefix string) *watch {
	defer s.lock()()
	w := &watch{prefix: prefix, pending: map[string]bool{"": true}, told: make(chan struct{}, 1)}
	w.wake()
	s.watches[w] = true
	return w
}

func (s *Space) unwatch(w *watch) {
	defer s.lock()()
	delete(s.watches, w)
}

func (s *Space) takePending(w *watch) map[string]bool {
	defer s.lock()()
	names := w.pending
	w.pending = map[string]bool{}
	return names
}

// Watch tells of every change, expiry included; see driver.Watcher. Nothing
// interrupts it, so that the empty name comes at first, and again only if the
// caller has left a thousand names untaken.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	w := d.space.watch(prefix)
	defer d.space.unwatch(w)
	for {
		switch {
		case d.isClosed():
			return interlock.ErrClosed
		case ctx.Err() != nil:
			return problem("watch", prefix, interlock.Definite, context.Cause(ctx))
		}
		select {
		case <-w.told:
		case <-ctx.Done():
			continue
		case <-d.done:
			continue
		}
		for name := range d.space.takePending(w) {
			if ctx.Err() != nil {
				break
			}
			changed(name)
		}
	}
}

var _ driver.Watcher = (*Driver)(nil)
