package consul

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Release implements driver.Fenced: one request, which deletes the key if it is unchanged
// since the grant. If the outcome of a transaction is unknown, it raises the fence and
// reads the key first. If Release fails, the driver repeats it with every renewal, because the
// session, which all locks share, keeps the key. For an owner unknown to this driver it sends nothing.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if err := checkName(opRelease, name); err != nil {
		return err
	}
	d.mu.Lock()
	if d.ctx.Err() != nil {
		d.mu.Unlock()
		return fail.Closed(opRelease, name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		d.mu.Unlock()
		return nil
	}
	c.giveUp()
	c.releasing++
	d.mu.Unlock()
	err := d.dropAll(ctx, c)
	d.mu.Lock()
	defer d.mu.Unlock()
	c.releasing--
	return err
}

// dropAll deletes the keys of a leaving contender, and forgets it.
func (d *Driver) dropAll(ctx context.Context, c *contender) error {
	for at := c; at != nil; at = at.previous {
		if err := d.drop(ctx, at); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(c)
	return nil
}

// giveUp ends the claim in this process. The caller holds the driver's mutex.
func (c *contender) giveUp() {
	c.events = driver.Events{}
	if c.term != nil {
		c.term.End()
	}
	if c.stage != lost {
		c.stage = leaving
	}
	c.cancel(interlock.ErrReleased)
}

// dropPrevious deletes the owner's key of a session that has ended.
func (d *Driver) dropPrevious(ctx context.Context, c *contender) error {
	for c.previous != nil {
		if err := d.drop(ctx, c.previous); err != nil {
			return err
		}
		d.mu.Lock()
		c.previous = c.previous.previous
		d.mu.Unlock()
	}
	return nil
}

// drop deletes a contender's key. nil means that it has none, and will have none.
func (d *Driver) drop(ctx context.Context, c *contender) error {
	d.mu.Lock()
	remains, doubtful := c.stage != lost && !c.session.gone && (c.doubtful || c.term != nil), c.doubtful
	index := c.index
	d.mu.Unlock()
	if !remains {
		return nil
	}
	if ctx.Err() != nil {
		return fail.Unanswered(ctx, opRelease, c.name)
	}
	if doubtful {
		if err := c.session.bump(ctx); err != nil {
			return uncertain(opRelease, c.name, failed(ctx, opRelease, c.name, err))
		}
		index = 0
	}
	for range attempts {
		if index == 0 {
			var err error
			if index, err = d.ownIndex(ctx, c); err != nil {
				return err
			}
		}
		done, err := d.remove(ctx, c, index)
		if done || err != nil {
			return err
		}
		index = 0
	}
	return fail.New(opRelease, c.name, interlock.Retryable, errOthers)
}

// nothing is the index of a key that another contender has.
const nothing = ^uint64(0)

// ownIndex reads the index of the contender's key.
func (d *Driver) ownIndex(ctx context.Context, c *contender) (uint64, error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	e, _, err := d.client.get(rctx, c.key)
	if err != nil {
		return 0, uncertain(opRelease, c.name, unread(rctx, opRelease, c.name, err))
	}
	// An operator may have replaced the value: then only the session identifies the holder,
	// and no other owner of this session can hold the name.
	if r, ours := readRecord(e); e.Session != c.session.id || ours && r.Owner != c.owner {
		return nothing, nil
	}
	return e.ModifyIndex, nil
}

// remove deletes the key if it is unchanged since index. done means that the contender has
// nothing any more.
func (d *Driver) remove(ctx context.Context, c *contender, index uint64) (done bool, err error) {
	if index != nothing {
		rctx, cancel := d.bounded(ctx)
		defer cancel()
		_, err = d.client.txn(rctx, op{Verb: "delete-cas", Key: c.key, Index: index})
		var changed *refusal
		if errors.As(err, &changed) {
			return false, nil
		}
		if err != nil {
			return false, failed(rctx, opRelease, c.name, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.stage, c.doubtful = lost, false
	return true, nil
}
