package consul

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
)

// watchPause is the least time between two queries of one Watch, so that a busy namespace is
// read at most twenty times a second.
const watchPause = 50 * time.Millisecond

// Watch implements driver.Watcher by blocking queries over the whole prefix: Consul answers
// each with all its keys. An interruption ends it, Retryable.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	const op = "watch"
	if err := d.usable(ctx, op, prefix); err != nil {
		return err
	}
	ctx, end := join.Context(ctx, d.ctx)
	defer end()
	var known map[string]uint64 // the index of each key
	for index := uint64(0); ; {
		all, next, err := d.await(ctx, op, prefix, index)
		if ended := d.usable(ctx, op, prefix); ended != nil {
			return ended
		}
		if err != nil {
			return err
		}
		now := map[string]uint64{}
		for _, e := range all {
			now[e.Key] = e.ModifyIndex
		}
		switch {
		case known == nil, next < index:
			changed("")
		case next > index && maps.Equal(known, now): // a key was created and deleted in between
			changed("")
		default:
			d.tell(known, now, prefix, changed)
		}
		known, index = now, next
		backoff.Sleep(ctx, watchPause)
	}
}

// await sends one blocking query over the whole prefix; index 0 answers at once.
func (d *Driver) await(ctx context.Context, op, name string, index uint64) ([]entry, uint64, error) {
	ctx, cancel := d.blocking(ctx)
	defer cancel()
	all, next, err := d.client.read(ctx, d.layout.prefix, query{recurse: true, index: index, wait: d.pace.quiet})
	if err != nil {
		err = unread(ctx, op, name, err)
	}
	return all, next, err
}

// blocking limits one blocking query. Consul answers up to a sixteenth later than
// requested.
func (d *Driver) blocking(ctx context.Context) (context.Context, context.CancelFunc) {
	return d.within(ctx, d.pace.quiet+d.pace.quiet/16+d.pace.request/4)
}

// tell calls changed for each name whose key appeared, changed or disappeared.
func (d *Driver) tell(before, now map[string]uint64, prefix string, changed func(string)) {
	for key, index := range now {
		if before[key] != index {
			d.tellOne(key, prefix, changed)
		}
	}
	for key := range before {
		if now[key] == 0 {
			d.tellOne(key, prefix, changed)
		}
	}
}

func (d *Driver) tellOne(key, prefix string, changed func(string)) {
	if name, ok := d.layout.name(key); ok && strings.HasPrefix(name, prefix) {
		changed(name)
	}
}
