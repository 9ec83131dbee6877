package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// This file passes over waiters whose processes died, before their sessions end.
//
//	declare   a waiter that is near the head of the queue for a heartbeat writes into its node that it
//	          is unconfirmed.
//	takeTurn  when it is first, it overwrites that, and holds only if that succeeds.
//	passOver  a contender that is first for a heartbeat and still unconfirmed is deleted by those behind.
//
// Each of these requests names the version of the node that it relies on, so ZooKeeper orders them:
// nothing deletes a node that was confirmed, and nothing confirms one that was deleted. So exclusion
// depends on no clock. A live waiter that does not take its turn within a heartbeat loses its place.
//
// A contender that was first before it declared anything writes nothing, and nothing deletes its node.

// near is how many contenders may be before one that declares itself, or passes over the first.
const near = 8

// record returns the content of c's node.
func (c *contender) record(s scale) record {
	return record{Owner: text(c.owner), Asked: c.asked, TTL: c.session.ttl.Milliseconds(), scale: s}
}

// look reads the nodes of the last and the first contender ahead of c; from deep in the queue, of
// one that is near instead of the first. It reports that the queue must be listed again. Errors
// are left to the next heartbeat.
func (s *session) look(ctx context.Context, c *contender, ahead queue) (changed bool) {
	last, first := len(ahead)-1, max(0, len(ahead)-near)
	f, err := s.get(ctx, opAcquire, c.name, c.lock+"/"+ahead[last].name)
	if err == nil && f != nil && first < last {
		f, err = s.get(ctx, opAcquire, c.name, c.lock+"/"+ahead[first].name)
	}
	switch {
	case err != nil:
		return false
	case f == nil:
		return true
	case first > 0 || s.declare(ctx, c) != nil:
		return false
	}
	return s.passOver(ctx, c, ahead[0], f)
}

// declare makes c's node say that it is unconfirmed, unless it does. The next heartbeat repeats
// a request whose outcome is unknown.
func (s *session) declare(ctx context.Context, c *contender) error {
	s.d.mu.Lock()
	declared := c.declared
	s.d.mu.Unlock()
	if declared {
		return nil
	}
	err := s.write(ctx, c, true)
	if err != nil && !errors.Is(err, zk.ErrBadVersion) {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	c.declared = true
	return nil
}

// takeTurn confirms c, unless it is confirmed. If an answer was lost, or another client wrote into
// its node, the version is another one: takeTurn reads it, and the caller tries again.
func (s *session) takeTurn(ctx context.Context, c *contender) error {
	s.d.mu.Lock()
	node, unconfirmed := c.node, c.unconfirmed
	s.d.mu.Unlock()
	if !unconfirmed {
		return nil
	}
	err := s.write(ctx, c, false)
	if !errors.Is(err, zk.ErrBadVersion) {
		return err
	}
	f, err := s.get(ctx, opAcquire, c.name, node)
	if err != nil || f == nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	c.version = max(c.version, f.stat.Version)
	return nil
}

// write writes into c's node whether c is unconfirmed, unless it is no longer waiting. The node
// must have the known version, so that at most one of the requests under way has an effect. c is
// unconfirmed before a request says so, and until one that does not say so has succeeded.
func (s *session) write(ctx context.Context, c *contender, unconfirmed bool) error {
	s.d.mu.Lock()
	if c.state != waiting {
		s.d.mu.Unlock()
		return nil
	}
	c.unconfirmed = c.unconfirmed || unconfirmed
	node, version, r := c.node, c.version, c.record(c.scale)
	s.d.mu.Unlock()
	r.Unconfirmed = unconfirmed
	stat, err := ask(ctx, s, opAcquire, c.name, func(conn *zk.Conn) (*zk.Stat, error) {
		return conn.Set(node, r.encode(), version)
	})
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case c.node != node || c.version != version: // an event was handled, or another call wrote
		return nil
	case errors.Is(err, zk.ErrNoNode):
		c.nodeDeleted()
		return nil
	case err == nil:
		c.version, c.unconfirmed = stat.Version, unconfirmed
	}
	return err
}

// passOver deletes the node of the first contender if it is unconfirmed. It reports that the node is
// gone or was written since it was read as f.
func (s *session) passOver(ctx context.Context, c *contender, first node, f *found) (changed bool) {
	if !isUnconfirmed(first, f) {
		return false
	}
	_, err := ask(ctx, s, opAcquire, c.name, func(conn *zk.Conn) (struct{}, error) {
		return struct{}{}, conn.Delete(c.lock+"/"+first.name, f.stat.Version)
	})
	return err == nil || errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)
}

// isUnconfirmed reports whether a contender says that it does not hold. f may be nil.
func isUnconfirmed(n node, f *found) bool {
	if f == nil || n.family != curator {
		return false
	}
	r, ok := readRecord(f.data)
	return ok && r.Unconfirmed
}
