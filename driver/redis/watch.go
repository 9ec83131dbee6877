package redis

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// changes begins the channel, which ends with the key of the lock, on which the scripts
// publish that its holder or waiters changed. Watchers subscribe to a pattern, so that
// the server passes on what is watched and nothing else.
const changes = "interlock:changes:"

// rescanEvery is how often a watcher reads everything, since foreign
// clients and operators change locks and publish nothing.
const rescanEvery = 5 * time.Second

// Watch tells of names whose holder or waiters changed, over one subscription for
// all of the driver that watch the same prefix; see driver.Watcher. What foreign
// clients and operators do is found within five seconds, by a hint that any name may
// have changed.
//
// The server sends what happens below the prefix, if the user has the channels
// allchannels (&*). A user with the pattern &interlock:changes:* receives what happens
// to all locks, because Redis permits no narrower pattern then.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	return d.layout.watch(ctx, d.conn, prefix, changed)
}

// Watch tells of names whose holder changed; see [Driver.Watch].
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
