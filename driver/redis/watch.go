package redis

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// changes begins the channel on which the scripts publish changes of a lock's holder or
// waiters; the lock's key follows. Watchers subscribe to a pattern, so that the server
// sends only what is watched.
const changes = "interlock:changes:"

// rescanEvery is how often a watcher reads everything, since foreign clients and
// operators change locks without publishing.
const rescanEvery = 5 * time.Second

// Watch calls changed for names whose holder or waiters changed; see driver.Watcher.
// Watchers of one prefix share one subscription of the driver. Changes by foreign
// clients and operators are found within five seconds, by a hint that any name may
// have changed.
//
// The server sends only the changes below the prefix, if the user has the channels
// allchannels (&*). A user with the pattern &interlock:changes:* receives those of all
// locks, because Redis then permits no narrower pattern.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	return d.layout.watch(ctx, d.conn, prefix, changed)
}

// Watch calls changed for names whose holder changed; see [Driver.Watch].
func (p *Plain) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	return p.layout.watch(ctx, p.conn, prefix, changed)
}

func (l layout) watch(ctx context.Context, c *conn, prefix string, changed func(name string)) error {
	err := l.watchBelow(ctx, c, l.prefix+prefix, prefix, changed)
	if isForbidden(err) && l.prefix+prefix != "" {
		err = l.watchBelow(ctx, c, "", prefix, changed)
	}
	return err
}

// watchBelow subscribes to the locks that begin with full.
func (l layout) watchBelow(ctx context.Context, c *conn, full, prefix string, changed func(name string)) error {
	due := boottime.Now()
	return c.follow(ctx, request{op: "watch", name: prefix}, topic{name: escapeGlob(changes+full) + "*", pattern: true},
		func(_ context.Context, channels []string, missed bool) (time.Duration, error) {
			now := boottime.Now()
			if missed || now >= due {
				due = now.Add(rescanEvery)
				changed("")
				return rescanEvery, nil
			}
			for _, channel := range channels {
				lock := strings.TrimPrefix(channel, changes)
				if name, ours := strings.CutPrefix(lock, l.prefix); ours && strings.HasPrefix(name, prefix) {
					changed(name)
				}
			}
			return due.Sub(now), nil
		})
}
