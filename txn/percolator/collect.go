package percolator

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Collect drops versions that no snapshot younger than keep can see, and the records of keys
// that were deleted long ago. It returns the safe point: from then on, transactions that
// began before it get [ErrTooOld] if they need dropped versions. Collect first resolves all
// locks below the safe point and registers it in a store. A living transaction or a
// [DB.Snapshot] below it lowers it. Collect reads all keys twice; run it every few minutes,
// in any process that has all stores: others get [ErrStores]. Concurrent calls are harmless.
func (db *DB) Collect(ctx context.Context, keep time.Duration) (Timestamp, error) {
	if keep < 0 {
		return 0, failed("collect", "", interlock.Bug, fmt.Errorf("keep is %v", keep))
	}
	now, err := db.now(ctx)
	if err != nil {
		return 0, err
	}
	safe := now.Add(-keep)
	if err := db.complete(ctx); err != nil { // transactions of stores that are added later begin after now
		return 0, err
	}
	err = db.all(ctx, func(_ place, c *cell) error {
		for c.record.Lock != nil && c.record.Lock.Start < safe {
			l := c.record.Lock
			fate, err := db.resolve(ctx, c.key, l, 0)
			if err != nil {
				return err
			}
			if fate.outcome == alive {
				safe = l.Start
			} else {
				return nil
			}
		}
		return nil
	})
	if err == nil {
		err = db.change(ctx, func(s *safePoint, now Timestamp) error {
			safe = s.raise(safe, now)
			return nil
		})
	}
	if err != nil {
		return 0, err
	}
	return safe, db.all(ctx, func(p place, c *cell) error { return db.drop(ctx, p, c, safe, now) })
}

// all calls fn for every record.
func (db *DB) all(ctx context.Context, fn func(p place, c *cell) error) error {
	for i, p := range db.places {
		if err := db.each(ctx, i, keyRange{}, func(c *cell) (bool, error) { return true, fn(p, c) }); err != nil {
			return err
		}
	}
	return nil
}

// drop collects one record. A record that contains only a safe point is deleted when every
// transaction below that is older than [MaxAge]: none of those can commit, even if a
// request arrives late.
func (db *DB) drop(ctx context.Context, p place, c *cell, safe, now Timestamp) error {
	r, _ := collect(c.record, safe)
	if r.empty() && now.Sub(c.record.Safe) > MaxAge && c.record.empty() {
		_, err := p.store.Swap(ctx, driver.Swap{Key: dataPrefix + c.key, Revision: c.revision, Delete: true})
		return err
	}
	if len(r.Writes) == len(c.record.Writes) && len(r.Aborted) == len(c.record.Aborted) && !r.empty() ||
		bytes.Equal(r.encode(), c.record.encode()) || c.record.empty() {
		return nil // nothing to drop: only the safe point would change
	}
	_, err := p.apply(ctx, []*cell{c}, false, func(r record, _ string) (record, answer) { return collect(r, safe) })
	return err
}
