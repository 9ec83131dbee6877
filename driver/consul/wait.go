package consul

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// wait follows the key by blocking queries while another holds it. A failed query is
// followed by one that does not block, since its answer may be lost.
func (d *Driver) wait(ctx context.Context, c *contender, now sight) (sight, error) {
	for now.Session != "" {
		d.report(c, holderOf(now.entry))
		asked := time.Now()
		next, err := d.follow(ctx, c, now.index)
		switch {
		case ctx.Err() != nil:
			return now, d.stopped(ctx, c, interlock.Uncertain)
		case err != nil && interlock.Kind(unread(ctx, opAcquire, c.name, err)) == interlock.Definite:
			return now, failed(ctx, opAcquire, c.name, err)
		case err != nil:
			now.index = 0
			if err := d.pause(ctx, c, d.pace.retry); err != nil {
				return now, err
			}
			continue
		}
		if next.index < now.index {
			next.index = 0 // Consul's index fell: it may be another cluster
		}
		now = next
		if early := d.pace.least - time.Since(asked); now.Session != "" && early > 0 {
			if err := d.pause(ctx, c, early); err != nil {
				return now, err
			}
		}
	}
	return now, nil
}

// follow sends one blocking query; index 0 answers at once.
func (d *Driver) follow(ctx context.Context, c *contender, index uint64) (sight, error) {
	rctx, cancel := d.blocking(ctx)
	defer cancel()
	all, next, err := d.client.read(rctx, c.key, query{index: index, wait: d.pace.quiet})
	if err != nil || len(all) == 0 {
		return sight{index: next}, err
	}
	return sight{all[0], next}, nil
}

// report reports the holder that c waits for, if it has changed.
func (d *Driver) report(c *contender, holder string) {
	d.mu.Lock()
	defer d.mu.Unlock() // so that the report does not follow a Release
	p := driver.Place{Ahead: -1, Holder: holder}
	if c.events.Waiting == nil || c.place != nil && *c.place == p {
		return
	}
	c.place = &p
	c.events.Waiting(p)
}

// holderOf names the holder of a key, for display.
func holderOf(e entry) string {
	if r, ok := readRecord(e); ok {
		return r.Owner
	}
	return "session " + e.Session
}
