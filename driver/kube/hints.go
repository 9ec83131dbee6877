package kube

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
)

// mailbox holds the unreported changes of one call of Watch.
type mailbox struct {
	prefix string
	news   chan struct{}
	any    bool // something may have been missed
	names  map[string]bool
}

// notify records that the holder of an object changed. The caller holds the mutex,
// here and in tellAll.
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

// Watch implements driver.Watcher, over the driver's one watch. A hint means that
// any client changed the holder of a Lease; renewals give none.
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

// subscribe registers m. If the watch is open, nothing is missed from here on;
// otherwise the next list reports the changes.
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

// collect returns the content of a mailbox and empties it.
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
