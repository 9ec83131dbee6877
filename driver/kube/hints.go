package kube

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// notify records that the holder of an object changed. The caller holds the mutex,
// here and in notifyAll.
func (v *view) notify(l layout, object string) {
	name, ours := l.name(object)
	if !ours {
		return
	}
	for box := range v.watchers {
		box.Add(name)
	}
}

func (v *view) notifyAll() {
	for box := range v.watchers {
		box.Miss()
	}
}

// Watch implements driver.Watcher, over the driver's one watch. A hint means that
// any client changed the holder of a Lease; renewals give none.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	box := driver.NewMailbox(prefix, driver.MostNames)
	if err := d.subscribe(box, prefix); err != nil {
		return err
	}
	defer d.unsubscribe(box)
	for {
		if ctx.Err() != nil {
			return problem("watch", prefix, interlock.Definite, context.Cause(ctx))
		}
		select {
		case <-ctx.Done():
		case <-d.ctx.Done():
			return errClosed("watch", prefix)
		case <-box.Woken():
			names, missed := box.Take()
			if missed {
				names = []string{""}
			}
			for _, name := range names {
				changed(name)
			}
		}
	}
}

// subscribe registers box. If the watch is open, nothing is missed from here on;
// otherwise the next list reports the changes.
func (d *Driver) subscribe(box *driver.Mailbox, prefix string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed("watch", prefix)
	}
	d.view.watchers[box] = true
	if d.view.up {
		box.Miss()
	}
	return nil
}

func (d *Driver) unsubscribe(box *driver.Mailbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.view.watchers, box)
}
