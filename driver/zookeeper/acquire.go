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

const (
	opAcquire = "acquire"

	// attempts bounds how often one call asks again after a definite no, such as
	// a parent that vanished or a base that was raised meanwhile.
	attempts = 8
)

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx
// is done; a single request is given up after a third of the TTL, at most five
// seconds. Uncontended it is three requests, one of them a write.
//
// Besides the errors of the interface: Retryable with interlock.ErrSessionEnded
// or interlock.ErrLost in its chain means that the place in the line is gone
// and that the same call takes a new one; a [*FamilyError] that clients stand in
// the same line who would not see us.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := d.acquire(ctx, r)
	if err != nil {
		d.silence(identity{r.Name, r.Owner})
	}
	return g, err
}

func (d *Driver) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.check(ctx, r); err != nil {
		return driver.Grant{}, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return driver.Grant{}, prelude(err)
	}
	if r.NoWait && !d.knows(identity{r.Name, r.Owner}) {
		if err := d.peek(ctx, s, r.Name); err != nil {
			return driver.Grant{}, err
		}
	}
	c, err := d.enlist(s, r)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := d.enter(ctx, s, c); err != nil {
		return driver.Grant{}, err
	}
	return d.await(ctx, s, c, r.NoWait)
}

func (d *Driver) check(ctx context.Context, r driver.Request) error {
	if err := d.layout.check(opAcquire, r.Name); err != nil {
		return err
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName {
		return &interlock.Error{Op: opAcquire, Driver: driverName, Name: r.Name, Kind: interlock.Bug,
			Err: fmt.Errorf("the owner has %d bytes, and must have 1 to %d", len(r.Owner), driver.MaxName)}
	}
	if ctx.Err() != nil {
		return notSent(ctx, opAcquire, r.Name)
	}
	return nil
}

func (d *Driver) knows(id identity) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.contenders[id] != nil
}

// peek refuses a request that would not wait, before it leaves a trace.
func (d *Driver) peek(ctx context.Context, s *session, name string) error {
	lock := d.layout.lock(name)
	list, err := s.children(ctx, opAcquire, name, lock)
	if err != nil {
		return prelude(err)
	}
	q := queueOf(list)
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

// enlist finds the owner's contender, or makes one.
func (d *Driver) enlist(s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed(opAcquire, r.Name)
	}
	if s.ended {
		return nil, again(r.Name, interlock.ErrSessionEnded)
	}
	id := identity{r.Name, r.Owner}
	old := d.contenders[id]
	if old != nil && old.session == s && old.state < dropped {
		old.events = r.Events
		old.place = driver.Place{Ahead: -1} // and be told anew
		return old, nil
	}
	c := &contender{
		identity: id,
		id:       newID(),
		lock:     d.layout.lock(r.Name),
		session:  s,
		events:   r.Events,
		place:    driver.Place{Ahead: -1},
		changed:  make(chan struct{}, 1),
	}
	if old != nil && !old.gone() {
		c.stale = old.ids()
	}
	d.contenders[id] = c
	return c, nil
}

// enter makes sure that c has a node in line, that it is of this session, and
// that its end will be told.
func (d *Driver) enter(ctx context.Context, s *session, c *contender) error {
	for range attempts {
		if err := d.settle(ctx, s, c); err != nil {
			return err
		}
		if d.hasNode(c) {
			return d.verify(ctx, s, c)
		}
		if err := d.create(ctx, s, c); err != nil && !isObsolete(err) {
			return err
		}
	}
	return again(c.name, errors.New("the lock's node, or the base of tokens, kept changing"))
}

// isObsolete reports that a request relied on what has changed, and did nothing.
func isObsolete(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)
}

func (d *Driver) hasNode(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.node != "" || c.state != asking
}

// settle finds out what became of a request to create c's node whose answer is
// not known. Its random part tells; the client sends in order, and the server
// catches up with the leader first, so what is not seen then will not come.
func (d *Driver) settle(ctx context.Context, s *session, c *contender) error {
	if err := d.created(ctx, s, c); err != nil {
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
		c.stands(c.lock + "/" + q[i].name)
	}
	return nil
}

// created waits for a request that is under way.
func (d *Driver) created(ctx context.Context, s *session, c *contender) error {
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
		return &interlock.Error{Op: opAcquire, Driver: driverName, Name: c.name, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
	}
}

// line reads the line as it is now, and not as a server that lags behind has it.
func (d *Driver) line(ctx context.Context, s *session, c *contender) (queue, error) {
	if err := s.sync(ctx, opAcquire, c.name); err != nil {
		return nil, err
	}
	list, err := s.children(ctx, opAcquire, c.name, c.lock)
	return queueOf(list), err
}

// create sends one request that puts c in line, if the base of tokens is still
// the one that it relies on. isObsolete tells that nothing was done and why it
// may be sent again.
func (d *Driver) create(ctx context.Context, s *session, c *contender) error {
	b, err := s.currentBase(ctx)
	if err != nil {
		return prelude(err)
	}
	over := make(chan struct{})
	d.mu.Lock()
	c.creating, c.scale = over, b.scale
	d.mu.Unlock()
	_, err = ask(ctx, s, opAcquire, c.name, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		responses, err := d.multi(conn, s, c, b)
		d.noteCreated(c, over, responses, err)
		return responses, err
	})
	if err != nil && interlock.Kind(err) != interlock.Uncertain {
		d.noteCreated(c, over, nil, err) // perhaps it was not sent
	}
	switch {
	case errors.Is(err, zk.ErrBadVersion):
		s.forgetBase()
	case errors.Is(err, zk.ErrNoNode):
		s.forgetBase() // perhaps that is what is missing
		if failure := d.prepare(ctx, s, c); failure != nil {
			return failure
		}
	}
	return err
}

// multi is the request itself. It is not sent for one that has left meanwhile.
func (d *Driver) multi(conn *zk.Conn, s *session, c *contender, b base) ([]zk.MultiResponse, error) {
	d.mu.Lock()
	left := c.state != asking || s.ended
	d.mu.Unlock()
	if left {
		return nil, zk.ErrNoServer
	}
	data := encode(record{Owner: text(c.owner), Asked: d.options.Now().UTC(), TTL: s.ttl.Milliseconds(), scale: b.scale})
	return conn.Multi(
		&zk.CheckVersionRequest{Path: d.layout.base(), Version: b.version},
		&zk.CreateRequest{Path: c.lock + "/_c_" + c.id + "-lock-", Data: data, Acl: d.options.ACL,
			Flags: zk.FlagEphemeral | zk.FlagSequence},
	)
}

// noteCreated takes the outcome of a request, also when nobody waits for it any
// more.
func (d *Driver) noteCreated(c *contender, over chan struct{}, responses []zk.MultiResponse, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.creating != over {
		return
	}
	c.creating = nil
	close(over)
	switch {
	case err == nil:
		c.stands(responses[1].String)
	case kindOf(err) == interlock.Uncertain:
		c.unsure = true
	}
	if c.state == leaving {
		nudge(d.tendNow)
	}
}

// prepare makes the lock's node, and those above it. They are containers, which
// the servers remove some time after the last contender has gone; servers
// before 3.5 have none and keep plain nodes.
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
			return prelude(err)
		}
	}
	return nil
}

func (d *Driver) makeNode(ctx context.Context, s *session, path string, flag int32) error {
	_, err := ask(ctx, s, "make lock's node", "", func(c *zk.Conn) (string, error) {
		if flag == zk.FlagContainer {
			return c.CreateContainer(path, nil, flag, d.options.ACL)
		}
		return c.Create(path, nil, flag, d.options.ACL)
	})
	return err
}

// isUnknownRequest is what a server says to a request that it does not know. The
// client has no name for that.
func isUnknownRequest(err error) bool {
	var e *interlock.Error
	return errors.As(err, &e) && e.Err.Error() == "unknown error: -6"
}

// verify looks at the node and watches it. One of another session would go with
// that session, and is not believed, whatever its name says.
func (d *Driver) verify(ctx context.Context, s *session, c *contender) error {
	d.mu.Lock()
	node, asked := c.node, c.state == asking
	d.mu.Unlock()
	if !asked {
		return nil
	}
	stat, err := s.watchOwn(ctx, c.name, node)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.state != asking: // it was told meanwhile
		return nil
	case stat == nil:
		c.vanish()
		return nil
	case stat.EphemeralOwner != s.id:
		c.state = dropped
		return again(c.name, fmt.Errorf("the node %s belongs to session %#x, and ours is %#x: %w",
			below(node), stat.EphemeralOwner, s.id, interlock.ErrSessionEnded))
	}
	if c.token, err = c.scale.token(stat.Czxid); err != nil {
		return err
	}
	c.state = waiting
	return nil
}

// watchOwn reads the state of a node and has its end told; nil if it is gone.
func (s *session) watchOwn(ctx context.Context, name, path string) (*zk.Stat, error) {
	return ask(ctx, s, opAcquire, name, func(c *zk.Conn) (*zk.Stat, error) {
		exists, stat, _, err := c.ExistsW(path)
		if !exists {
			return nil, err
		}
		return stat, err
	})
}

// await waits for the turn of a contender in line.
func (d *Driver) await(ctx context.Context, s *session, c *contender, noWait bool) (driver.Grant, error) {
	for {
		if g, done, err := d.outcome(c); done {
			return g, err
		}
		list, err := s.children(ctx, opAcquire, c.name, c.lock)
		if err != nil {
			return driver.Grant{}, err
		}
		q := queueOf(list)
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
			d.decide(c, i == 0)
		case noWait:
			return driver.Grant{}, d.giveWay(ctx, s, c, q[0])
		default:
			if err := d.stand(ctx, s, c, q, i); err != nil {
				return driver.Grant{}, err
			}
		}
	}
}

// outcome is what an Acquire has to say by now.
func (d *Driver) outcome(c *contender) (g driver.Grant, done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return g, true, errClosed(opAcquire, c.name)
	case c.state == leaving:
		return g, true, &interlock.Error{Op: opAcquire, Driver: driverName, Name: c.name,
			Kind: interlock.Definite, Err: interlock.ErrReleased}
	case c.state == dropped:
		return g, true, again(c.name, fmt.Errorf("its node was deleted: %w", interlock.ErrLost))
	case c.state == outdated, c.session.term.Remaining() <= 0:
		return g, true, again(c.name, interlock.ErrSessionEnded)
	case c.state == holding:
		return c.grant(), true, nil
	}
	return g, false, nil
}

// decide is for one that is first in line, or no longer in it.
func (d *Driver) decide(c *contender, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.state != waiting:
	case first:
		c.state = holding
	default:
		c.vanish()
	}
}

// giveWay ends a request that does not wait, and leaves nothing behind.
func (d *Driver) giveWay(ctx context.Context, s *session, c *contender, holder node) error {
	if err := d.Release(ctx, c.name, c.owner); err != nil {
		return err
	}
	return d.held(ctx, s, c.name, c.lock, holder)
}

// removeStale deletes nodes of the same owner under sessions that ran out.
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

// stand waits behind the one before c, until that has gone or something has
// become of c. Only that one's node is watched, so that a release wakes one.
func (d *Driver) stand(ctx context.Context, s *session, c *contender, q queue, i int) error {
	before := c.lock + "/" + q[i-1].name
	watched := d.join(s, c, before)
	defer d.stepOut(s, c, before)
	place := driver.Place{Ahead: i - 1}
	if !watched || i == 1 && d.holderUnknown(c) {
		f, err := d.watch(ctx, s, c, before)
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

// holderUnknown reports that nobody has told c yet who holds.
func (d *Driver) holderUnknown(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.place.Ahead != 0 || c.place.Holder == ""
}

// join has c woken when the node at path goes. watched reports that a watch
// stands on it; otherwise the caller sets one.
func (d *Driver) join(s *session, c *contender, path string) (watched bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.ahead[path] == nil {
		s.ahead[path] = map[*contender]bool{}
	}
	s.ahead[path][c] = true
	watched = s.watched[path]
	s.watched[path] = true
	return watched
}

// stepOut is the opposite of join.
func (d *Driver) stepOut(s *session, c *contender, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(s.ahead[path], c)
	if len(s.ahead[path]) == 0 {
		delete(s.ahead, path)
	}
}

// watch reads the node at path and has its end told; nil if it is gone. Without
// a watch everyone who relies on one is woken to look again.
func (d *Driver) watch(ctx context.Context, s *session, c *contender, path string) (*found, error) {
	f, err := ask(ctx, s, opAcquire, c.name, func(conn *zk.Conn) (*found, error) {
		data, stat, _, err := conn.GetW(path)
		return &found{data: data, stat: stat}, err
	})
	if err == nil {
		return f, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(s.watched, path)
	for other := range s.ahead[path] {
		other.wake()
	}
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return nil, err
}

// pause waits until c is woken. At every heartbeat it looks whether the one
// before is still there, in case word of its end was lost.
func (d *Driver) pause(ctx context.Context, s *session, c *contender, before string) error {
	beat := time.NewTicker(s.pace.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-c.changed:
			return nil
		case <-ctx.Done():
			return &interlock.Error{Op: opAcquire, Driver: driverName, Name: c.name, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		case <-beat.C:
			f, err := s.get(ctx, opAcquire, c.name, before)
			if err == nil && f == nil {
				return nil
			}
		}
	}
}

// silence ends the events of an owner whose Acquire returns an error, whatever
// becomes of its place.
func (d *Driver) silence(id identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.contenders[id]; c != nil {
		c.events = driver.Events{}
	}
}
