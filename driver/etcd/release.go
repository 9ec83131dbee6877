package etcd

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Release implements driver.Fenced: one request that deletes the owner's own key, which no other
// owner reuses before the answer. If its outcome is unknown, the driver repeats the deletion at
// every heartbeat, because the lease, which all contenders share, keeps the key alive. For an
// owner unknown to this driver, Release sends nothing.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	c, keys, err := d.endClaim(name, owner)
	if c == nil || err != nil {
		return err
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	reply, err := d.requests.Do(rctx, c.line, deletion(keys))
	if err != nil {
		d.retryDelete(c)
		return failed(rctx, "release", name, err)
	}
	c.session.removed(reply.Header.Revision, c.key)
	d.released(c)
	return nil
}

// released records that one release of c was confirmed.
func (d *Driver) released(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.pending--
	d.forget(c)
}

// endClaim ends the claim in this process, and returns the keys that etcd may have of it. The
// contender stays known until etcd has confirmed; nil means that there is nothing to confirm.
func (d *Driver) endClaim(name, owner string) (*contender, []string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed("release", name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		return nil, nil, nil
	}
	gone := c.goneWithSession() || c.state == dropped && !c.session.queues.isDeleting(c.key) && len(c.stale) == 0
	c.over.Store(true)
	c.granted, c.state, c.events = false, leaving, driver.Events{}
	c.session.queues.stepOut(c)
	c.wake()
	if gone {
		d.forget(c)
		return nil, nil, nil
	}
	c.pending++ // permanently if the outcome is unknown
	return c, c.keys(), nil
}

// keys returns all keys that etcd may have of a contender.
func (c *contender) keys() []string { return append(slices.Clone(c.stale), c.key) }

// goneWithSession reports whether its keys ended with its session.
func (c *contender) goneWithSession() bool { return c.session.revoked && !c.aside && len(c.stale) == 0 }

// forget removes a contender. The caller holds the driver's mutex.
func (d *Driver) forget(c *contender) {
	c.session.queues.leave(c)
	if d.contenders[c.identity] == c {
		delete(d.contenders, c.identity)
	}
}

// retryDelete makes the present session repeat the deletion of a failed release, until etcd
// confirms it or has ended the contender's session. The contender stays known until then, so
// that the release can be repeated.
func (d *Driver) retryDelete(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.goneWithSession() {
		d.forget(c)
		return
	}
	c.session.queues.leave(c) // from here on no contender has the key
	if d.session != nil {
		d.session.queues.inherit(c)
	}
}

// cleanUp revokes the leases of a closing driver if no claim is held, and otherwise deletes the
// waiters. Errors are ignored: the lease expires.
func (s *session) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Second, s.d.pace.request))
	defer cancel()
	s.d.mu.Lock()
	keys, held := s.queues.leftovers(batch)
	w := s.wait
	s.d.mu.Unlock()
	switch {
	case !held:
		if w != nil {
			_, _ = s.d.client.Revoke(ctx, w.id)
		}
		_, _ = s.d.client.Revoke(ctx, s.id)
	case len(keys) > 0:
		_, _ = s.d.delete(ctx, keys...)
	}
}
