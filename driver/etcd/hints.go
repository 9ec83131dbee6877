package etcd

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
	box := driver.NewMailbox(prefix, driver.MostNames)
	defer d.detach(box)
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
		d.attach(box, s)
		pass(ctx, box, s, changed)
	}
}

// attach starts to listen under a session. The first hint is that changes may have been missed:
// now if the watch is open, else once it is.
func (d *Driver) attach(box *driver.Mailbox, s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listeners[box] = true
	s.watch.need(changes)
	if s.watch.up {
		box.Miss()
	}
}

func (d *Driver) detach(box *driver.Mailbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.listeners, box)
}

// pass reports changes until the session or ctx ends.
func pass(ctx context.Context, box *driver.Mailbox, s *session, changed func(string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		case <-box.Woken():
		}
		names, missed := box.Take()
		if missed {
			names = []string{""}
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return
			}
			changed(name)
		}
	}
}

// hint reports to every listener that a line changed. A watch that is being replaced reports
// nothing: the next one begins with hintAll. The caller holds the driver's mutex, here and below.
func (w *watch) hint(line string) {
	if !w.up || len(w.d.listeners) == 0 {
		return
	}
	name, ok := w.d.layout.lineName(line)
	if !ok {
		return // it is not the line of a name
	}
	for box := range w.d.listeners {
		box.Add(name)
	}
}

// hintAll reports to every listener that it may have missed changes.
func (d *Driver) hintAll() {
	for box := range d.listeners {
		box.Miss()
	}
}
