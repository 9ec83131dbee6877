package redis

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// changes is the channel on which the scripts publish the key of a lock whose
// holder or waiters changed. There is one for all prefixes, because one driver's
// prefix may begin with another's.
const changes = "interlock:changes"

// glance is how often a watcher is told to look at everything, since foreign
// clients and operators change locks without a word.
const glance = 5 * time.Second

// Watch tells of names whose holder or waiters changed, over one subscription for
// all watchers of the driver; see driver.Watcher. What foreign clients and
// operators do is found within five seconds, by a hint that any name may have
// changed. Watching needs the right to subscribe to interlock:changes.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	return d.layout.watch(ctx, d.conn, prefix, changed)
}

// Watch tells of names whose holder changed; see [Driver.Watch].
func (p *Plain) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	return p.layout.watch(ctx, p.conn, prefix, changed)
}

func (l layout) watch(ctx context.Context, c *conn, prefix string, changed func(name string)) error {
	due := boottime.Now()
	return c.follow(ctx, request{op: "watch", name: prefix}, changes,
		func(_ context.Context, h heard) (time.Duration, error) {
			now := boottime.Now()
			if h.missed || now >= due {
				due = now.Add(glance)
				changed("")
				return glance, nil
			}
			for _, lock := range slices.Sorted(maps.Keys(h.messages)) {
				if name, ours := strings.CutPrefix(lock, l.prefix); ours && strings.HasPrefix(name, prefix) {
					changed(name)
				}
			}
			return due.Sub(now), nil
		})
}
