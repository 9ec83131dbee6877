package percolator

import (
	"context"
	"maps"
	"slices"

	"github.com/interlock-dev/interlock/driver"
)

// validate checks that no other transaction changed what this one read before the commit
// timestamp at. It runs after the last prewrite: a transaction that locks a key later
// commits above at, and one that did before shows its lock. If two see each other's locks,
// the older one continues.
func (c *committer) validate(ctx context.Context, at Timestamp) error {
	passed := map[Timestamp]bool{}
	keys := slices.Sorted(maps.Keys(c.tx.reads))
	for i, p := range c.tx.db.places {
		var cells []*cell
		for _, key := range keys {
			if at, err := c.tx.db.place("validate", key); err == nil && at == i {
				cells = append(cells, &cell{key: key})
			}
		}
		for part := range slices.Chunk(cells, driver.MaxSwaps) {
			if err := persist(ctx, func() error { return p.load(ctx, part) }); err != nil {
				return err
			}
			for _, cell := range part {
				if err := c.unchanged(ctx, p, cell, at, passed); err != nil {
					return err
				}
			}
		}
		for _, r := range c.tx.ranges {
			err := c.tx.db.each(ctx, i, r, func(cell *cell) (bool, error) { return true, c.unchanged(ctx, p, cell, at, passed) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// unchanged validates one record.
func (c *committer) unchanged(ctx context.Context, p place, read *cell, at Timestamp, passed map[Timestamp]bool) error {
	for {
		if !read.fresh {
			if err := persist(ctx, func() error { return p.load(ctx, []*cell{read}) }); err != nil {
				return err
			}
		}
		a := validate(read.record, c.tx.start, at, passed)
		if a.outcome == done {
			return nil
		}
		if a.outcome != locked {
			return because("commit", read.key, a)
		}
		push := at
		if a.lock.Start < c.tx.start {
			push = 0
		}
		fate, err := c.tx.db.resolve(ctx, read.key, a.lock, push)
		switch {
		case err != nil:
			return err
		case fate.outcome != alive:
			read.fresh = false
		case push == 0:
			return because("commit", read.key, a)
		default:
			passed[a.lock.Start] = true
		}
	}
}
