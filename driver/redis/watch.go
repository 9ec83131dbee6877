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
func (k *keyspace) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	below := k.layout.prefix + prefix
	err := k.watchBelow(ctx, below, prefix, changed)
	if isForbidden(err) && below != "" {
		err = k.watchBelow(ctx, "", prefix, changed)
	}
	return err
}

// watchBelow subscribes to the locks that begin with full.
func (k *keyspace) watchBelow(ctx context.Context, full, prefix string, changed func(name string)) error {
	due := boottime.Now()
	return k.conn.follow(ctx, request{op: "watch", name: prefix}, topic{name: escapeGlob(changes+full) + "*", pattern: true},
		func(_ context.Context, channels []string, missed bool) (time.Duration, error) {
			now := boottime.Now()
			if missed || now >= due {
				due = now.Add(rescanEvery)
				changed("")
				return rescanEvery, nil
			}
			for _, channel := range channels {
				lock := strings.TrimPrefix(channel, changes)
				if name, ours := strings.CutPrefix(lock, k.layout.prefix); ours && strings.HasPrefix(name, prefix) {
					changed(name)
				}
			}
			return due.Sub(now), nil
		})
}
