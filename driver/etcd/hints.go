package etcd

import (
	"context"
	"errors"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// maxPending is how many names one Watch keeps for a slow caller; beyond that it reports that any
// name may have changed.
const maxPending = 1000

// listener is one call of Watch. Its fields are guarded by the driver's mutex.
type listener struct {
	prefix        string
	begun         bool            // it was notified that no later change is missed
	pending       map[string]bool // names to be reported; "" is any, and stands for all
	pendingSignal chan struct{}   // something is pending; capacity 1
}

// again reports that any name may have changed, and that no later change is missed.
func (l *listener) again() {
	l.begun, l.pending = true, map[string]bool{"": true}
	nudge(l.pendingSignal)
}

func (l *listener) add(name string) {
	if !l.begun || !strings.HasPrefix(name, l.prefix) {
		return
	}
	if l.pending[name] = true; len(l.pending) > maxPending {
		l.again()
	}
	nudge(l.pendingSignal)
}

// take returns the pending names and clears them.
func (l *listener) take() map[string]bool {
	names := l.pending
	if names[""] {
		names = map[string]bool{"": true}
	}
	l.pending = map[string]bool{}
	return names
}

var _ driver.Watcher = (*Driver)(nil)

// Watch implements driver.Watcher on the session's watch, which also reports new contenders during
// a call: one watch of etcd for all calls. It also reports claims whose session expired, because
// etcd deletes their keys. It opens a session if there is none; if that fails, the error is
// Retryable.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	const op = "watch"
	if ctx.Err() != nil {
		return unsent(ctx, op, prefix)
	}
	l := d.listen(prefix)
	defer d.unlisten(l)
	for {
		s, err := d.current(ctx)
		switch {
		case ctx.Err() != nil:
			return unsent(ctx, op, prefix)
		case errors.Is(err, interlock.ErrClosed):
			return errClosed(op, prefix)
		case err != nil:
			return prelude(err)
		}
		d.attach(l, s)
		d.pass(ctx, l, s, changed)
	}
}

func (d *Driver) listen(prefix string) *listener {
	l := &listener{prefix: prefix, pending: map[string]bool{}, pendingSignal: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listeners[l] = true
	return l
}

func (d *Driver) unlisten(l *listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.listeners, l)
}

// attach starts to listen under a session. If the watch is not open, it reports
// that changes may have been missed once it is.
func (d *Driver) attach(l *listener, s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.watch.need(changes)
	if s.watch.up {
		l.again()
	}
}

// pass reports changes until the session or ctx ends.
func (d *Driver) pass(ctx context.Context, l *listener, s *session, changed func(string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		case <-l.pendingSignal:
		}
		d.mu.Lock()
		names := l.take()
		d.mu.Unlock()
		for name := range names {
			if ctx.Err() != nil {
				return
			}
			changed(name)
		}
	}
}

// hint reports to every listener that a line changed. The caller holds the driver's
// mutex, here and below.
func (d *Driver) hint(line string) {
	if len(d.listeners) == 0 {
		return
	}
	name, ok := d.layout.lineName(line)
	if !ok {
		return // it is not the line of a name
	}
	for l := range d.listeners {
		l.add(name)
	}
}

// hintAll reports to every listener that it may have missed changes.
func (d *Driver) hintAll() {
	for l := range d.listeners {
		l.again()
	}
}
