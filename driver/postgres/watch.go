package postgres

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// handleNotification handles a notification: of a waiter's turn, of a forced release, or for watchers.
func (d *Driver) handleNotification(s *session, channel, payload string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != s || d.closed {
		return
	}
	if channel == d.dialer.watchChannel() {
		for w := range d.watchers {
			w.names.Add(payload)
		}
		return
	}
	if order, ok := strings.CutPrefix(payload, "!"); ok {
		d.handleBreak(s, order)
		return
	}
	if key, err := strconv.ParseInt(payload, 10, 64); err == nil {
		now := boottime.Now()
		d.perform(s, d.table.wake(now, key))
		d.reschedule(now)
	}
}

// watcher is one running Watch. After the end of a session it must attend again, and any name may have
// changed.
type watcher struct {
	prefix string
	names  *driver.Mailbox
}

// settling are the delays after which a new watch reports again that anything may have
// changed: statements that were under way when it began do not notify it.
var settling = []time.Duration{100 * time.Millisecond, time.Second, statementTimeout + time.Second}

// Watch reports changes of holders and waiters; see driver.Watcher. The end of a session is not
// reported: look again when the holder expires.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	if ctx.Err() != nil {
		return fail.Unsent(ctx, "watch", prefix)
	}
	w := &watcher{prefix, driver.NewMailbox(prefix, driver.MostNames)}
	w.names.Miss()
	d.mu.Lock()
	d.watchers[w] = true
	d.mu.Unlock()
	defer d.unwatch(w)
	settle := time.NewTimer(time.Hour)
	defer settle.Stop()
	settled := 0
	for {
		names, begin, err := d.news(w)
		if err != nil {
			return err
		}
		if begin {
			if err := d.attend(ctx, w); err != nil {
				return err
			}
			names, settled = []string{""}, 0
			settle.Reset(settling[0])
		}
		for _, name := range names {
			changed(name)
		}
		select {
		case <-ctx.Done():
			return fail.Unsent(ctx, "watch", prefix)
		case <-w.names.Woken():
		case <-settle.C:
			if changed(""); settled+1 < len(settling) {
				settled++
				settle.Reset(settling[settled])
			}
		}
	}
}

// news returns the changed names. If begin is true, the watch must attend.
func (d *Driver) news(w *watcher) (names []string, begin bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, fail.Closed("watch", w.prefix)
	}
	names, begin = w.names.Take()
	return names, begin, nil
}

// attend makes the sessions that change a lock notify this one.
func (d *Driver) attend(ctx context.Context, w *watcher) error {
	s, err := d.connected(ctx, "watch", w.prefix)
	if err != nil {
		return err
	}
	_, err = d.askOn(ctx, s, "watch", w.prefix, step{stListen, nil}, step{stAttend, []string{number(s.id)}})
	if err != nil && ctx.Err() == nil && interlock.Kind(err) == interlock.Uncertain {
		return problem("watch", w.prefix, interlock.Retryable, err)
	}
	return err
}

// unwatch removes w; without watchers there are no more notifications.
func (d *Driver) unwatch(w *watcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.watchers, w)
	if s := d.session; s != nil && len(d.watchers) == 0 && !d.closed {
		d.run(s, step{stUnlisten, nil}, step{stForget, []string{number(s.id)}})
	}
}
