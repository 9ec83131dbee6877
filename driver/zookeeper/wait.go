package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// await waits until a contender is first in the queue. q is the queue, if it has c.
func (d *Driver) await(ctx context.Context, s *session, c *contender, q queue, noWait bool) (driver.Grant, error) {
	for ; ; q = nil {
		if g, done, err := d.outcome(c); done {
			return g, err
		}
		if q.find(c.id) < 0 {
			list, err := s.children(ctx, opAcquire, c.name, c.lock)
			if err != nil {
				return driver.Grant{}, err
			}
			q = queueOf(list)
		}
		if err := d.refuse(c.name, q); err != nil {
			return driver.Grant{}, d.withdraw(ctx, c, err)
		}
		if removed, err := d.removeStale(ctx, s, c, q); removed || err != nil {
			if err != nil {
				return driver.Grant{}, err
			}
			continue
		}
		i := q.find(c.id)
		switch {
		case i <= 0:
			if d.decide(c, i == 0) {
				d.watchLock(ctx, s, c)
			}
		case noWait:
			return driver.Grant{}, d.refuseHeld(ctx, s, c, q[0])
		default:
			s.watchAgain(ctx, c)
			if err := d.awaitPredecessor(ctx, s, c, q, i); err != nil {
				return driver.Grant{}, err
			}
		}
	}
}

// outcome returns the result of an Acquire, if it is done.
func (d *Driver) outcome(c *contender) (g driver.Grant, done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return g, true, fail.Closed(opAcquire, c.name)
	case c.state == leaving:
		return g, true, fail.New(opAcquire, c.name, interlock.Definite, interlock.ErrReleased)
	case c.state == dropped:
		return g, true, again(c.name, fmt.Errorf("its node was deleted: %w", interlock.ErrLost))
	case c.state == outdated, c.session.term.Remaining() <= 0:
		return g, true, again(c.name, interlock.ErrSessionEnded)
	case c.state == holding:
		return c.grant(), true, nil
	}
	return g, false, nil
}

// decide records that a contender is first in the queue, or no longer in it.
func (d *Driver) decide(c *contender, first bool) (holds bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.state != waiting:
	case first:
		c.state, c.first = holding, true
	default:
		c.nodeDeleted()
	}
	return c.state == holding
}

// refuseHeld ends a request that does not wait, and removes its node.
func (d *Driver) refuseHeld(ctx context.Context, s *session, c *contender, holder node) error {
	if err := d.Release(ctx, c.name, c.owner); err != nil {
		return err
	}
	return d.held(ctx, s, c.name, c.lock, holder)
}

// removeStale deletes nodes of the same owner under sessions that expired here.
func (d *Driver) removeStale(ctx context.Context, s *session, c *contender, q queue) (removed bool, err error) {
	d.mu.Lock()
	stale := c.stale
	d.mu.Unlock()
	for _, n := range q {
		if !slices.Contains(stale, n.id) {
			continue
		}
		if err := s.remove(ctx, opAcquire, c.name, c.lock+"/"+n.name); err != nil {
			return removed, err
		}
		removed = true
	}
	return removed, nil
}

// awaitPredecessor waits until the contender before c has left, or c has ended. It watches only
// that contender's node, so that a release wakes one waiter.
func (d *Driver) awaitPredecessor(ctx context.Context, s *session, c *contender, q queue, i int) error {
	before := c.lock + "/" + q[i-1].name
	d.mu.Lock()
	watched := s.nodes.join(c, before)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		s.nodes.stepOut(c, before)
	}()
	place := driver.Place{Ahead: i - 1}
	if !watched || i == 1 && d.holderUnknown(c) {
		f, err := d.read(ctx, s, c, before, watched)
		if err != nil || f == nil {
			return err
		}
		if i == 1 {
			place.Holder = ownerOf(q[0], f.data)
		}
	}
	d.mu.Lock()
	if i == 1 && place.Holder == "" {
		place.Holder = c.place.Holder
	}
	if c.state == waiting {
		c.queue(place)
	}
	d.mu.Unlock()
	return d.pause(ctx, s, c, before)
}

// holderUnknown reports whether c does not know the holder yet.
func (d *Driver) holderUnknown(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.place.Ahead != 0 || c.place.Holder == ""
}

// read reads the node at path; nil if there is none. Unless it is watched, read watches for its
// deletion. If that fails, all contenders that rely on the watch are woken to look again. A second
// watch would stay in the client until the node changes.
func (d *Driver) read(ctx context.Context, s *session, c *contender, path string, watched bool) (*found, error) {
	if watched {
		return s.get(ctx, opAcquire, c.name, path)
	}
	f, err := ask(ctx, s, opAcquire, c.name, func(conn *zk.Conn) (*found, error) {
		data, stat, _, err := conn.GetW(path)
		return &found{data: data, stat: stat}, err
	})
	if err == nil {
		return f, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.nodes.unwatch(path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return nil, err
}

// pause waits until c is woken. At every heartbeat it checks that the node before c still
// exists, in case an event was lost.
func (d *Driver) pause(ctx context.Context, s *session, c *contender, before string) error {
	beat := time.NewTicker(s.pace.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-c.changed:
			return nil
		case <-ctx.Done():
			return fail.Unanswered(ctx, opAcquire, c.name)
		case <-beat.C:
			f, err := s.get(ctx, opAcquire, c.name, before)
			if err == nil && f == nil {
				return nil
			}
		}
	}
}
