package kube

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
)

// mailbox holds what one call of Watch has not reported yet.
type mailbox struct {
	prefix string
	news   chan struct{}
	any    bool // something may have been missed
	names  map[string]bool
}

// notify notes that the holder of an object changed. The mutex is held, here and in
// tellAll.
func (v *view) notify(l layout, object string) {
	name, ours := l.name(object)
	if !ours {
		return
	}
	for m := range v.watchers {
		if strings.HasPrefix(name, m.prefix) {
			m.names[name] = true
			nudge(m.news)
		}
	}
}

func (v *view) notifyAll() {
	for m := range v.watchers {
		m.any = true
		nudge(m.news)
	}
}

// Watch implements driver.Watcher, over the one watch that the driver has. A hint
// comes when the holder of a Lease changed, by any client, and not when it was
// renewed.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	m := &mailbox{prefix: prefix, news: make(chan struct{}, 1), names: map[string]bool{}}
	if err := d.subscribe(m); err != nil {
		return err
	}
	defer d.unsubscribe(m)
	for {
		if ctx.Err() != nil {
			return problem("watch", prefix, interlock.Definite, context.Cause(ctx))
		}
		select {
		case <-ctx.Done():
		case <-d.ctx.Done():
			return errClosed("watch", prefix)
		case <-m.news:
			for _, name := range d.collect(m) {
				changed(name)
			}
		}
	}
}

// subscribe registers m. If the watch stands, nothing is missed from here on;
// otherwise the next list says so.
func (d *Driver) subscribe(m *mailbox) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed("watch", m.prefix)
	}
	d.view.watchers[m] = true
	if m.any = d.view.up; m.any {
		nudge(m.news)
	}
	return nil
}

func (d *Driver) unsubscribe(m *mailbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.view.watchers, m)
}

// collect empties a mailbox.
func (d *Driver) collect(m *mailbox) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := slices.Sorted(maps.Keys(m.names))
	if m.any {
		names = []string{""}
	}
	m.any, m.names = false, map[string]bool{}
	return names
}
