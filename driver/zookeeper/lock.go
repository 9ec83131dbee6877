package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// This file is the protocol of a lock, the recipe "Locks" of ZooKeeper's documentation (Recipes and
// Solutions), in the layout of Curator's InterProcessMutex, with a token. The sequential nodes below
// ROOT/NAME are the queue of NAME, in the order of their numbers. The first one holds the lock.
//
//	acquire  multi: one transaction creates the owner's ephemeral, sequential node, if the base of
//	         tokens is unchanged. Then the queue is listed, unless the node's number proves that it is
//	         the first (succession, in contender.go).
//	token    base + (czxid − anchor), where the czxid is the transaction's id; see scale.go.
//	wait     awaitPredecessor watches the node before its own, so that a release wakes one waiter.
//	         Waiters whose processes died are passed over; see turn.go.
//	renewal  session.go keeps the session alive. All claims of the process share it and its deadline.
//	loss     a watch reports that the node is gone (contender.go), or session.go that the session is
//	         gone or its time over.
//	release  one request deletes the node.
//
// If the outcome of a creation is unknown, enter.go finds the node by the random part of its name. If
// that of a deletion is unknown, maintain (contender.go) repeats it.

// multi creates nodes if the base of tokens is unchanged. It writes the mark instead of
// checking it, because the answer to a write has the transaction's id.
func (s *session) multi(calls []*entryCall) ([]zk.MultiResponse, error) {
	b := calls[0].Ask.base
	ops := make([]any, 2, 2+len(calls))
	ops[0] = &zk.CheckVersionRequest{Path: s.d.layout.base(), Version: b.version}
	ops[1] = &zk.SetDataRequest{Path: s.d.layout.base() + "/" + b.mark, Version: -1}
	for _, call := range calls {
		c := call.Ask.c
		ops = append(ops, &zk.CreateRequest{Path: c.lock + "/_c_" + c.id + "-lock-", Data: c.record(b.scale).encode(),
			Acl: s.d.options.ACL, Flags: zk.FlagEphemeral | zk.FlagSequence})
	}
	return s.conn.Multi(ops...)
}

const (
	opAcquire = "acquire"
	opRelease = "release"

	// attempts bounds how often one call repeats a refused request: its parent node
	// was removed, or the base was raised meanwhile.
	attempts = 8
)

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx
// is done. A single request is bounded by a third of the TTL, 1 s to 5 s. Uncontended it is one write
// and, unless this process was the last to hold the lock, one list of the queue at the same time.
//
// Besides the errors of the interface: Retryable with interlock.ErrSessionEnded
// or interlock.ErrLost in its chain means that the place in the queue is lost. The same call
// takes a new one. A [*FamilyError] means that clients queue for the same lock that do not see
// our nodes.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := d.acquire(ctx, r)
	if err != nil {
		d.dropEvents(identity{r.Name, r.Owner})
	}
	return g, err
}

func (d *Driver) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.check(ctx, r); err != nil {
		return driver.Grant{}, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return driver.Grant{}, harmless(err)
	}
	if r.NoWait && !d.knows(identity{r.Name, r.Owner}) {
		if err := d.peek(ctx, s, r.Name); err != nil {
			return driver.Grant{}, err
		}
	}
	c, err := d.register(s, r)
	if err != nil {
		return driver.Grant{}, err
	}
	q, err := d.enter(ctx, s, c)
	if err != nil {
		return driver.Grant{}, err
	}
	return d.await(ctx, s, c, q, r.NoWait)
}

// await waits until a contender is first in the queue. q is the queue, if it has c.
func (d *Driver) await(ctx context.Context, s *session, c *contender, q queue, noWait bool) (driver.Grant, error) {
	for ; ; q = nil {
		g, done, err := d.outcome(c)
		if done {
			return g, err
		}
		if q.find(c.id) < 0 {
			if q, err = s.queue(ctx, c.name, c.lock); err != nil {
				return driver.Grant{}, err
			}
		}
		if err := d.refuse(c.name, q); err != nil {
			return driver.Grant{}, d.withdraw(ctx, c, err)
		}
		if removed, err := s.removeAll(ctx, opAcquire, c, q, c.stale); err != nil {
			return driver.Grant{}, err
		} else if removed {
			continue
		}
		i := q.find(c.id)
		switch {
		case i <= 0:
			if err := s.takeTurn(ctx, c); err != nil {
				return driver.Grant{}, err
			}
			if d.decide(c, i == 0) {
				d.watchLock(ctx, s, c)
			}
		case noWait:
			return driver.Grant{}, d.withdraw(ctx, c, d.held(ctx, s, c.name, c.lock, q[0]))
		default:
			s.watchAgain(ctx, c)
			if err := d.awaitPredecessor(ctx, s, c, q, i); err != nil {
				return driver.Grant{}, err
			}
		}
	}
}

// awaitPredecessor waits until the contender before c has left, or c has ended. It watches only
// that contender's node, so that a release wakes one waiter.
func (d *Driver) awaitPredecessor(ctx context.Context, s *session, c *contender, q queue, i int) error {
	before := c.lock + "/" + q[i-1].name
	place := driver.Place{Ahead: i - 1}
	d.mu.Lock()
	watched := s.nodes.join(c, before)
	if i == 1 && c.place.Ahead == 0 {
		place.Holder = c.place.Holder
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		s.nodes.stepOut(c, before)
	}()
	if !watched || i == 1 && place.Holder == "" {
		f, err := d.read(ctx, s, c, before, watched)
		if err != nil || f == nil {
			return err
		}
		if i == 1 {
			place.Holder = ownerOf(q[0], f.data)
		}
	}
	d.mu.Lock()
	if c.state == waiting {
		c.queue(place)
	}
	d.mu.Unlock()
	return d.pause(ctx, s, c, q[:i])
}

// pause waits until c is woken, or the contenders ahead, which were just listed, have changed. It
// looks at every heartbeat, in case an event was lost or a process died.
func (d *Driver) pause(ctx context.Context, s *session, c *contender, ahead queue) error {
	beat := time.NewTicker(s.pace.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-c.changed:
			return nil
		case <-ctx.Done():
			return fail.Unanswered(ctx, opAcquire, c.name)
		case <-beat.C:
			if s.look(ctx, c, ahead) {
				return nil
			}
		}
	}
}

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
		return harmless(err)
	}
	return d.clear(ctx, s, c)
}

// clear deletes all nodes that ZooKeeper may have of a leaving contender. A node of a session
// that expired here is found by its random part, and deleted under the present session.
func (d *Driver) clear(ctx context.Context, s *session, c *contender) error {
	if err := d.awaitCreation(ctx, s, c); err != nil {
		return err
	}
	d.mu.Lock()
	node, czxid, ids, plain := c.node, c.czxid, c.ids(), c.session == s && !c.unsure && len(c.stale) == 0
	d.mu.Unlock()
	if plain && node != "" {
		if _, err := shared(ctx, &d.removals, opRelease, c.name, node, removal{s, c.name, node}); err != nil {
			return err
		}
	} else {
		q, err := d.line(ctx, s, c)
		if err == nil {
			_, err = s.removeAll(ctx, opRelease, c, q, ids)
		}
		if err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if own, ok := readNode(below(node)); ok && plain && c.first && !s.ended {
		s.nodes.departed(c, own, czxid)
	}
	d.forget(c)
	return nil
}

// removeAll deletes the nodes of c's queue with one of the random parts.
func (s *session) removeAll(ctx context.Context, op string, c *contender, q queue, ids []string) (removed bool, err error) {
	for _, n := range q {
		if !slices.Contains(ids, n.id) {
			continue
		}
		if err := s.remove(ctx, op, c.name, c.lock+"/"+n.name); err != nil {
			return removed, err
		}
		removed = true
	}
	return removed, nil
}

func (d *Driver) check(ctx context.Context, r driver.Request) error {
	if err := d.layout.check(opAcquire, r.Name); err != nil {
		return err
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName {
		return fail.New(opAcquire, r.Name, interlock.Bug, fmt.Errorf("the owner has %d bytes, 1 to %d are allowed", len(r.Owner), driver.MaxName))
	}
	if ctx.Err() != nil {
		return notSent(ctx, opAcquire, r.Name)
	}
	return nil
}

// peek refuses a request that must not wait before it creates a node. Its server may be behind the
// leader, so that a holder counts only if it is still there after a sync.
func (d *Driver) peek(ctx context.Context, s *session, name string) error {
	lock := d.layout.lock(name)
	q, err := s.queue(ctx, name, lock)
	if err == nil && len(q) > 0 {
		if err = s.sync(ctx, opAcquire, name); err == nil {
			q, err = s.queue(ctx, name, lock)
		}
	}
	if err != nil {
		return harmless(err)
	}
	if err := d.refuse(name, q); err != nil {
		return err
	}
	if len(q) > 0 {
		return d.held(ctx, s, name, lock, q[0])
	}
	return nil
}

func (d *Driver) held(ctx context.Context, s *session, name, lock string, holder node) error {
	held := &interlock.HeldError{Name: name}
	if f, err := s.get(ctx, opAcquire, name, lock+"/"+holder.name); err == nil && f != nil {
		held.Owner = ownerOf(holder, f.data)
	}
	return held
}

// withdraw removes c from the queue, and returns why. If the removal fails, it returns that error,
// because c may still be there.
func (d *Driver) withdraw(ctx context.Context, c *contender, why error) error {
	if err := d.Release(ctx, c.name, c.owner); err != nil {
		return err
	}
	return why
}

// queue lists the contenders of a lock.
func (s *session) queue(ctx context.Context, name, lock string) (queue, error) {
	list, err := s.children(ctx, opAcquire, name, lock)
	return queueOf(list), err
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
	case c.state != waiting || first && c.unconfirmed:
	case first:
		c.state, c.first = holding, true
	default:
		c.nodeDeleted()
	}
	return c.state == holding
}

// read reads the node at path; nil if there is none. Unless it is watched, read watches for its
// deletion. If that fails, all contenders that rely on the watch are woken to look again.
func (d *Driver) read(ctx context.Context, s *session, c *contender, path string, watched bool) (*found, error) {
	if watched {
		return s.get(ctx, opAcquire, c.name, path)
	}
	f, err := s.watch(ctx, opAcquire, c.name, path)
	if f == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		s.nodes.unwatch(path)
	}
	return f, err
}
