package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/group"
	"github.com/interlock-dev/interlock/internal/hints"
)

// enter gives c a node of this session in the queue, in up to attempts rounds. A round finds out
// whether an earlier request has created the node (settle). If there is a node, it checks whose it
// is (verify); otherwise it sends a request (create). enter returns the queue if that was listed
// after the node was created.
func (d *Driver) enter(ctx context.Context, s *session, c *contender) (q queue, err error) {
	for range attempts {
		if err := d.settle(ctx, s, c); err != nil {
			return nil, err
		}
		if d.hasNode(c) {
			err := d.verify(ctx, s, c)
			if !errors.Is(err, errSpent) {
				return q, err
			}
			if err := d.stepBack(ctx, s, c); err != nil {
				return nil, err
			}
		}
		if q, err = d.create(ctx, s, c); err != nil && !isObsolete(err) {
			return nil, err
		}
	}
	return nil, again(c.name, errors.New("the lock's node, or the base of tokens, kept changing"))
}

// stepBack removes c's node from the queue, because an election or many transactions came
// between its base and itself. The next node relies on another base.
func (d *Driver) stepBack(ctx context.Context, s *session, c *contender) error {
	d.mu.Lock()
	node := c.node
	delete(s.nodes.own, node)
	d.mu.Unlock()
	s.counter.forget()
	if err := s.remove(ctx, opAcquire, c.name, node); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.node == node {
		c.node, c.czxid = "", 0
	}
	return nil
}

// isObsolete reports whether a request had no effect because its base or its parent node has
// changed.
func isObsolete(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)
}

func (d *Driver) hasNode(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.node != "" || c.state != asking
}

// settle determines the outcome of a request to create c's node whose answer was lost. It
// looks for the node's random part. The client sends in order, and a majority has agreed to a
// later request first. So a node that is missing then will never be created.
func (d *Driver) settle(ctx context.Context, s *session, c *contender) error {
	if err := d.awaitCreation(ctx, s, c); err != nil {
		return err
	}
	d.mu.Lock()
	unsure := c.unsure
	d.mu.Unlock()
	if !unsure {
		return nil
	}
	q, err := d.line(ctx, s, c)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.unsure = false
	if i := q.find(c.id); i >= 0 {
		c.setNode(c.lock + "/" + q[i].name)
	}
	return nil
}

// awaitCreation waits for the end of a request that creates c's node.
func (d *Driver) awaitCreation(ctx context.Context, s *session, c *contender) error {
	d.mu.Lock()
	creating := c.creating
	d.mu.Unlock()
	if creating == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.pace.request, errSlow)
	defer cancel()
	select {
	case <-creating:
		return nil
	case <-ctx.Done():
		return fail.Unanswered(ctx, opAcquire, c.name)
	}
}

// line lists the queue after a majority has confirmed the session: an earlier request is part of
// it, or never takes effect.
func (d *Driver) line(ctx context.Context, s *session, c *contender) (queue, error) {
	if err := s.confirm(ctx, opAcquire, c.name); err != nil {
		return nil, err
	}
	return s.queue(ctx, c.name, c.lock)
}

// create sends a request that adds c to the queue if the base of tokens is unchanged. If
// isObsolete(err), the request had no effect and may be sent again. The queue, if it is
// returned, may have been listed before the node was created.
func (d *Driver) create(ctx context.Context, s *session, c *contender) (queue, error) {
	b, err := s.counter.current(ctx)
	if err != nil {
		return nil, harmless(err)
	}
	e := entry{s, c, b, make(chan struct{})}
	d.mu.Lock()
	c.creating, c.scale = e.over, b.scale
	d.mu.Unlock()
	list, err := shared(ctx, &d.entries, opAcquire, c.name, c.lock, e)
	if err != nil && interlock.Kind(err) != interlock.Uncertain {
		d.noteUnsent(e) // no effect if the outcome is noted already
	}
	switch {
	case errors.Is(err, zk.ErrBadVersion):
		s.counter.forget()
	case errors.Is(err, zk.ErrNoNode):
		s.counter.forget() // the base's node may be the missing one
		if failure := d.prepare(ctx, s, c); failure != nil {
			return nil, failure
		}
	}
	return queueOf(list), err
}

// enterAlone creates the node of one contender. Unless that is expected to prove that it is first, a
// request that is sent at the same time lists the queue. For a contender that has left, it sends
// nothing.
func (d *Driver) enterAlone(ctx context.Context, e entry) ([]string, error) {
	return ask(ctx, e.s, opAcquire, e.c.name, func(conn *zk.Conn) ([]string, error) {
		if d.hasLeft(e) { // its Acquire may have returned already
			d.noteUnsent(e)
			return nil, zk.ErrNoServer
		}
		var lists chan []string
		if !d.isExpectedFirst(e) {
			lists = make(chan []string, 1)
			if !d.start(func() {
				list, _, _ := conn.Children(e.c.lock) // if it fails, the queue is listed again
				lists <- list
			}) {
				lists = nil
			}
		}
		responses, err := e.s.multi([]*entryCall{{Ask: e}})
		list := d.noteCreated(e, responses, 0, err)
		if list == nil && err == nil && lists != nil {
			list = <-lists
		}
		return list, err
	})
}

func (d *Driver) hasLeft(e entry) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.c.state != asking || e.s.ended
}

// noteUnsent records that the request of e had no effect.
func (d *Driver) noteUnsent(e entry) { d.noteCreated(e, nil, 0, zk.ErrNoServer) }

// noteCreated records the outcome of a request whose node number i is e's, even if no caller
// waits for it any more. It returns the queue up to the node if the node proves that.
func (d *Driver) noteCreated(e entry, responses []zk.MultiResponse, i int, err error) (q []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := e.c
	if c.creating != e.over {
		return nil
	}
	c.creating = nil
	close(e.over)
	switch {
	case err == nil:
		c.setNode(responses[2+i].String)
		if c.session.conn.SessionID() == c.session.id {
			c.czxid = responses[1].Stat.Mzxid
		}
		if last := c.session.nodes.followed(c); last != nil && last.parent != 0 {
			q = []string{below(c.node)}
		}
	case kindOf(err) == interlock.Uncertain:
		c.unsure = true
	}
	if c.state == leaving {
		hints.Signal(d.maintainNow)
	}
	return q
}

// prepare creates the lock's node, and those above it. They are containers, which the servers
// remove some time after the last contender. Servers before 3.5 have none and keep plain nodes.
func (d *Driver) prepare(ctx context.Context, s *session, c *contender) error {
	for _, path := range append(parents(c.lock), c.lock) {
		flag := int32(zk.FlagContainer)
		if len(path) <= len(d.layout.root) {
			flag = zk.FlagPersistent
		}
		err := d.makeNode(ctx, s, path, flag)
		if isUnknownRequest(err) {
			err = d.makeNode(ctx, s, path, zk.FlagPersistent)
		}
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return harmless(err)
		}
	}
	return nil
}

func (d *Driver) makeNode(ctx context.Context, s *session, path string, flag int32) error {
	_, err := ask(ctx, s, "make lock's node", "", func(c *zk.Conn) (struct{}, error) { return struct{}{}, makeNode(c, path, flag, d.options.ACL) })
	return err
}

// makeNode creates a node. Servers check the right to create it before they look for it, and an
// operator may have created it in a place where this client has no right to.
func makeNode(c *zk.Conn, path string, flag int32, acl []zk.ACL) (err error) {
	if flag == zk.FlagContainer {
		_, err = c.CreateContainer(path, nil, flag, acl)
	} else {
		_, err = c.Create(path, nil, flag, acl)
	}
	if errors.Is(err, zk.ErrNoAuth) {
		if exists, _, failed := c.Exists(path); exists && failed == nil {
			return zk.ErrNodeExists
		}
	}
	return err
}

// isUnknownRequest reports whether a server does not know the request. The client has no
// error value for that.
func isUnknownRequest(err error) bool {
	var e *interlock.Error
	return errors.As(err, &e) && e.Err.Error() == "unknown error: -6"
}

// verify checks that the node belongs to this session. If the answer to the creating request
// proves that, maintain sets the watch later, for long claims. Otherwise verify reads and
// watches the node. A node of another session ends with that session, so it is not accepted,
// whatever its name.
func (d *Driver) verify(ctx context.Context, s *session, c *contender) (err error) {
	d.mu.Lock()
	node, czxid, asked := c.node, c.czxid, c.state == asking
	d.mu.Unlock()
	if !asked {
		return nil
	}
	stat := &zk.Stat{Czxid: czxid, EphemeralOwner: s.id}
	if czxid == 0 {
		if stat, err = s.watchOwn(ctx, c.name, node); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.unwatched = c.unwatched || czxid != 0
	switch {
	case c.state != asking: // an event was handled meanwhile
		return nil
	case stat == nil:
		c.nodeDeleted()
		return nil
	case stat.EphemeralOwner != s.id:
		c.state = dropped
		return again(c.name, fmt.Errorf("the node %s belongs to session %#x, and ours is %#x: %w",
			below(node), stat.EphemeralOwner, s.id, interlock.ErrSessionEnded))
	}
	s.counter.newest = max(s.counter.newest, stat.Czxid)
	if c.token, err = c.scale.token(stat.Czxid); err != nil {
		return err
	}
	c.state, c.version = waiting, stat.Version
	return nil
}

// mostUnderWay bounds the requests under way that create nodes, and those that delete nodes,
// before further ones wait and are sent together. More cost more processor time.
const mostUnderWay = 1

// mostTogether bounds the nodes that one request creates or deletes.
const mostTogether = 64

type (
	// entry is a request to create the node of a contender.
	entry struct {
		s    *session
		c    *contender
		base base
		over chan struct{} // contender.creating
	}
	// removal is a request to delete a node.
	removal struct {
		s          *session
		name, path string
	}
	entryCall   = group.Call[entry, []string]
	removalCall = group.Call[removal, struct{}]
)

func (d *Driver) groupRequests() {
	d.entries.Requests, d.entries.Calls = mostUnderWay, mostTogether
	d.entries.Alone, d.entries.Send, d.entries.Go = d.enterAlone, d.enterTogether, d.tasks.Go
	d.removals.Requests, d.removals.Calls = mostUnderWay, mostTogether
	d.removals.Alone, d.removals.Send, d.removals.Go = d.removeAlone, d.removeTogether, d.tasks.Go
}

// shared sends a request that may be sent with others.
func shared[Q, A any](ctx context.Context, g *group.Group[Q, A], op, name, key string, ask Q) (A, error) {
	answer, err := g.Do(ctx, key, ask)
	switch _, wrapped := errors.AsType[*interlock.Error](err); {
	case err == nil || wrapped:
	case errors.Is(err, interlock.ErrClosed):
		err = fail.Closed(op, name)
	case errors.Is(err, group.ErrUnsent):
		err = notSent(ctx, op, name)
	default:
		err = fail.Unanswered(ctx, op, name)
	}
	return answer, err
}

// enterTogether creates the nodes of contenders of different locks. If the server refuses one
// of them, the request has no effect, and each is sent alone.
func (d *Driver) enterTogether(calls []*entryCall) {
	first := calls[0].Ask
	var same, others []*entryCall
	for _, c := range calls {
		if d.hasLeft(c.Ask) {
			d.noteUnsent(c.Ask)
			c.Err = again(c.Ask.c.name, zk.ErrNoServer)
		} else if c.Ask.s == first.s && c.Ask.base.version == first.base.version && c.Ask.base.mark == first.base.mark {
			same = append(same, c)
		} else {
			others = append(others, c)
		}
	}
	if len(others) > 0 {
		defer d.enterTogether(others)
	}
	if len(same) == 0 {
		return
	}
	var over atomic.Bool // the request was refused, or ask has returned
	answers, err := ask(context.WithoutCancel(first.s.ctx), first.s, opAcquire, "", func(*zk.Conn) ([][]string, error) {
		responses, err := first.s.multi(same)
		if isRefused(err) && len(same) > 1 && !over.Swap(true) {
			return nil, err
		}
		answers := make([][]string, len(same))
		for i, c := range same {
			answers[i] = d.noteCreated(c.Ask, responses, i, err)
		}
		return answers, err
	})
	if isRefused(err) && len(same) > 1 {
		group.Each(same, d.enterTogether)
		return
	}
	refused := over.Swap(true) // when ask did not wait any more
	for i, c := range same {
		if err == nil {
			c.Answer = answers[i]
			continue
		}
		if refused || interlock.Kind(err) != interlock.Uncertain {
			d.noteUnsent(c.Ask) // no effect if the outcome is noted already
		}
		c.Err = fail.New(opAcquire, c.Ask.c.name, interlock.Kind(err), errors.Unwrap(err))
	}
}

func (d *Driver) removeAlone(ctx context.Context, r removal) (none struct{}, err error) {
	return none, r.s.remove(ctx, opRelease, r.name, r.path)
}

// removeTogether deletes nodes, as enterTogether creates them.
func (d *Driver) removeTogether(calls []*removalCall) {
	s := calls[0].Ask.s
	ops := make([]any, len(calls))
	for i, c := range calls {
		if c.Ask.s != s {
			group.Each(calls, d.removeTogether)
			return
		}
		ops[i] = &zk.DeleteRequest{Path: c.Ask.path, Version: -1}
	}
	_, err := ask(context.WithoutCancel(s.ctx), s, opRelease, "", func(conn *zk.Conn) ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
	if isRefused(err) && len(calls) > 1 {
		group.Each(calls, d.removeTogether)
		return
	}
	for _, c := range calls {
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			c.Err = fail.New(opRelease, c.Ask.name, interlock.Kind(err), errors.Unwrap(err))
		}
	}
}

func isRefused(err error) bool { return err != nil && kindOf(err) == interlock.Definite }
