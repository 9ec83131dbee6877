package zookeeper

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

const opRelease = "release"

// Release implements driver.Fenced: one request that deletes the owner's own node. If its
// outcome is unknown, the driver repeats the deletion at every heartbeat, because the session,
// which the whole process shares, keeps the node alive. For an owner that this driver does not
// know, Release sends nothing.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	c, err := d.endClaim(name, owner)
	if c == nil || err != nil {
		return err
	}
	defer d.returned(c)
	s, err := d.current(ctx)
	if err != nil {
		return prelude(err)
	}
	return d.clear(ctx, s, c)
}

// endClaim ends the claim in this process and counts a call of Release, until
// [Driver.returned]. The contender stays known until ZooKeeper has confirmed; nil means that
// there is nothing to confirm.
func (d *Driver) endClaim(name, owner string) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fail.Closed(opRelease, name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		return nil, nil
	}
	c.over.Store(true)
	c.granted, c.state, c.events = false, leaving, driver.Events{}
	c.wake()
	if c.gone() {
		d.forget(c)
		return nil, nil
	}
	c.releasing++
	return c, nil
}

// returned records the end of a call of Release.
func (d *Driver) returned(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.releasing--
}

// clear deletes all nodes that ZooKeeper may have of a leaving contender. A node of a session
// that expired here is found by its random part, and deleted under the present session.
func (d *Driver) clear(ctx context.Context, s *session, c *contender) error {
	if err := d.awaitCreation(ctx, s, c); err != nil {
		return err
	}
	d.mu.Lock()
	node, czxid, plain := c.node, c.czxid, c.session == s && !c.unsure && len(c.stale) == 0
	d.mu.Unlock()
	if plain && node != "" {
		if _, err := shared(ctx, &d.removals, opRelease, c.name, node, removal{s, c.name, node}); err != nil {
			return err
		}
	} else if err := d.search(ctx, s, c); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if own, ok := readNode(below(node)); ok && plain && c.first && !s.ended {
		s.nodes.departed(c, own, czxid)
	}
	d.forget(c)
	return nil
}

// search deletes every node with one of the contender's random parts.
func (d *Driver) search(ctx context.Context, s *session, c *contender) error {
	q, err := d.line(ctx, s, c)
	if err != nil {
		return err
	}
	d.mu.Lock()
	ids := c.ids()
	d.mu.Unlock()
	for _, n := range q {
		if !slices.Contains(ids, n.id) {
			continue
		}
		if err := s.remove(ctx, opRelease, c.name, c.lock+"/"+n.name); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a contender. The driver's mutex is held.
func (d *Driver) forget(c *contender) {
	delete(c.session.nodes.own, c.node)
	if d.contenders[c.identity] == c {
		delete(d.contenders, c.identity)
	}
}

// maintain works at every heartbeat on contenders without a caller: it repeats unconfirmed
// releases, and sets watches that have fired.
func (s *session) maintain() {
	beat := time.NewTicker(min(s.pace.heartbeat, time.Second))
	defer beat.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.d.maintainNow:
		case <-beat.C:
		}
		for _, c := range s.left() {
			// a failure is repeated at the next heartbeat
			_ = s.d.clear(s.ctx, s, c)
		}
		for _, c := range s.unwatched() {
			s.watchAgain(s.ctx, c)
		}
	}
}

// left lists the contenders whose release is not confirmed and that no call of Release clears.
// A second deletion of a node would be refused, with every deletion in the same request.
func (s *session) left() []*contender {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []*contender
	for _, c := range s.d.contenders {
		if c.state == leaving && c.creating == nil && c.releasing == 0 {
			all = append(all, c)
		}
	}
	return all
}

func (s *session) unwatched() []*contender {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []*contender
	for _, c := range s.nodes.own {
		if c.unwatched {
			all = append(all, c)
		}
	}
	return all
}

// watchAgain watches the node of a contender whose watch has fired, or was not set.
func (s *session) watchAgain(ctx context.Context, c *contender) {
	s.d.mu.Lock()
	node, unwatched := c.node, c.unwatched
	c.unwatched = false
	s.d.mu.Unlock()
	if node == "" || !unwatched {
		return
	}
	stat, err := s.watchOwn(ctx, c.name, node)
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case c.node != node: // an event was handled meanwhile
	case err != nil:
		c.unwatched = true
	case stat == nil:
		c.nodeDeleted()
	}
}
