package kube

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Release implements driver.Fenced: one request, which clears the holder as
// client-go does and keeps the Lease. If the outcome of an Acquire is unknown, and
// its write could still arrive, Release touches the Lease so that it cannot. For an
// owner unknown to this driver it sends nothing.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if _, err := d.layout.locate("release", name); err != nil {
		return err
	}
	c, known, err := d.endClaim(name, owner)
	if c == nil || err != nil {
		return err
	}
	if ctx.Err() != nil {
		return problem("release", name, interlock.Uncertain, context.Cause(ctx))
	}
	for range attempts {
		if !known {
			if c.now, _, err = d.read(ctx, "release", name, c.object); err != nil {
				return doubtful("release", name, err)
			}
		}
		done, err := d.leave(ctx, c)
		if done || err != nil {
			return err
		}
		known = false
	}
	return problem("release", name, interlock.Retryable, errOthers)
}

// endClaim ends the claim in this process; nil means that there is nothing to send.
// known means that the Lease should be as we left it.
func (d *Driver) endClaim(name, owner string) (c *contender, known bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, errClosed("release", name)
	}
	if c = d.contenders[identity{name, owner}]; c == nil {
		return nil, false, nil
	}
	known = c.stage == holding
	c.events = driver.Events{}
	if c.term != nil {
		c.term.End()
	}
	nothing := c.stage == lost || c.stage == asking && !c.doubtful
	c.stage = leaving
	d.view.wake(c.object) // a waiting Acquire
	if nothing {
		d.forget(c)
		return nil, false, nil
	}
	return c, known, nil
}

// leave removes the owner from the Lease as it was last read. done means that the server has
// confirmed that no term or pending write of the owner remains.
func (d *Driver) leave(ctx context.Context, c *contender) (done bool, err error) {
	named := c.now.holder() == c.owner
	if !named && (!c.doubtful || c.now.rev != c.risk) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.forget(c)
		return true, nil
	}
	draft := c.now.draft(d.options.Namespace, c.object)
	if named || !c.now.exists() {
		clearHolder(draft, d.options.Now())
	}
	if !named {
		touch(draft, d.options.Now())
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	o, err := d.client.write(rctx, draft)
	switch {
	case moved(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, failed(rctx, "release", c.name, err)
	}
	d.learn(c.object, o)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(c)
	return true, nil
}
