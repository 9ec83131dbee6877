package consul

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Release implements driver.Fenced: one request, which deletes the key if it is as it was
// granted. If the outcome of a transaction is unknown, the fence is raised and the key read
// first. An owner that this driver does not know has nothing here, and costs no request.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if err := checkName(opRelease, name); err != nil {
		return err
	}
	d.mu.Lock()
	if d.ctx.Err() != nil {
		d.mu.Unlock()
		return errClosed(opRelease, name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		d.mu.Unlock()
		return nil
	}
	c.giveUp()
	d.mu.Unlock()
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

// giveUp ends the claim here and now. The driver's mutex is held.
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

// dropPrevious takes away what the owner had under a session that has ended.
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

// drop takes away what Consul has of a contender. nil means that it has nothing, and will
// have nothing.
func (d *Driver) drop(ctx context.Context, c *contender) error {
	d.mu.Lock()
	remains, doubtful := c.stage != lost && !c.session.gone && (c.doubtful || c.term != nil), c.doubtful
	index := c.index
	d.mu.Unlock()
	if !remains {
		return nil
	}
	if ctx.Err() != nil {
		return problem(opRelease, c.name, interlock.Uncertain, context.Cause(ctx))
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
	return problem(opRelease, c.name, interlock.Retryable, errOthers)
}

// nothing is the index of a key that is not the contender's.
const nothing = ^uint64(0)

// ownIndex reads the index of the contender's key.
func (d *Driver) ownIndex(ctx context.Context, c *contender) (uint64, error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	e, _, err := d.client.get(rctx, c.key)
	if err != nil {
		return 0, uncertain(opRelease, c.name, unread(rctx, opRelease, c.name, err))
	}
	// An operator may have replaced the value: then the session alone tells whose it is, and
	// nobody else of this session can hold the name.
	if r, ours := readRecord(e); e.Session != c.session.id || ours && r.Owner != c.owner {
		return nothing, nil
	}
	return e.ModifyIndex, nil
}

// remove deletes the key if it is as it was at index. It is done if the contender has nothing
// any more.
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
