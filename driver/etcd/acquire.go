package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// baseAttempts bounds how often one Acquire asks again because a session that
// opened meanwhile raised the base. Each of these answers is a definite no.
const baseAttempts = 8

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx
// is done; a single request is given up after a third of the TTL, at most five
// seconds. Uncontended it is one request.
//
// Besides the errors of the interface: Retryable with interlock.ErrSessionEnded
// or interlock.ErrLost in its chain means that the place in the line is gone
// and that the same call takes a new one.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := d.acquire(ctx, r)
	if err != nil {
		d.silence(identity{r.Name, r.Owner})
	}
	return g, err
}

func (d *Driver) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check(ctx, r); err != nil {
		return driver.Grant{}, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return driver.Grant{}, prelude(err)
	}
	if err := d.clear(ctx, s, identity{r.Name, r.Owner}); err != nil {
		return driver.Grant{}, err
	}
	c, err := d.enlist(s, r)
	if err != nil {
		return driver.Grant{}, err
	}
	if d.unanswered(c) {
		if err := d.ask(ctx, c, r.NoWait); err != nil {
			return driver.Grant{}, err
		}
	}
	if r.NoWait {
		return d.answerNow(ctx, c)
	}
	return d.await(ctx, c)
}

func check(ctx context.Context, r driver.Request) error {
	if err := checkName("acquire", r.Name); err != nil {
		return err
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName {
		return &interlock.Error{Op: "acquire", Driver: driverName, Name: r.Name, Kind: interlock.Bug,
			Err: fmt.Errorf("the owner has %d bytes, 1 to %d are allowed", len(r.Owner), driver.MaxName)}
	}
	if ctx.Err() != nil {
		return &interlock.Error{Op: "acquire", Driver: driverName, Name: r.Name, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	return nil
}

// clear deletes what stands under the owner's key and is not its doing: the
// request could only find it again.
func (d *Driver) clear(ctx context.Context, s *session, id identity) error {
	d.mu.Lock()
	c := d.contenders[id]
	barred := c != nil && c.session == s && s.queues.isDoomed(c.key)
	d.mu.Unlock()
	if !barred {
		return nil
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	reply, err := d.delete(rctx, []string{c.key})
	if err != nil {
		return failed(rctx, "acquire", id.name, err)
	}
	s.removed(reply.Revision, c.key)
	return nil
}

// enlist finds the owner's contender, or makes one and joins its line, so that
// no event about its key is missed from here on.
func (d *Driver) enlist(s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed("acquire", r.Name)
	}
	if s.queues.ended {
		return nil, again(r.Name, interlock.ErrSessionEnded)
	}
	id := identity{r.Name, r.Owner}
	old := d.contenders[id]
	if old != nil && old.session == s && old.state < dropped {
		old.resume(r.Events)
		return old, nil
	}
	c := &contender{
		identity: id,
		line:     d.layout.line(r.Name),
		key:      d.layout.contender(r.Name, s.id, r.Owner),
		session:  s,
		events:   r.Events,
		changed:  make(chan struct{}, 1),
	}
	if old != nil {
		c.stale = old.remains(s)
	}
	d.contenders[id] = c
	s.queues.join(c)
	return c, nil
}

// remains lists the keys of an old contender that etcd may still keep.
func (c *contender) remains(now *session) []string {
	if c.session == now || c.session.revoked || c.state == dropped {
		return c.stale
	}
	return append(slices.Clone(c.stale), c.key)
}

func (d *Driver) unanswered(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.state == asking
}

// ask puts the contender in line and reads the line in the same transaction.
func (d *Driver) ask(ctx context.Context, c *contender, noWait bool) error {
	for range baseAttempts {
		base, err := c.session.counter.current(ctx)
		if err != nil {
			return prelude(err)
		}
		answered, err := d.askOnce(ctx, c, base, noWait)
		if answered || err != nil {
			return err
		}
	}
	return again(c.name, errors.New("the base of tokens kept changing"))
}

// askOnce sends one transaction. answered is false if the base had changed and
// nothing was written.
func (d *Driver) askOnce(ctx context.Context, c *contender, base base, noWait bool) (answered bool, err error) {
	if err := d.connected(ctx, "acquire", c.name); err != nil {
		return false, err
	}
	floor := c.session.floor()
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	read := inOrder(c.line)
	reply, err := d.client.Txn(rctx).If(d.conditions(c, base, noWait)...).
		Then(append(d.entry(c, base), read)...).
		Else(read, clientv3.OpGet(d.layout.base())).
		Commit()
	switch {
	case leaseGone(err):
		c.session.end(interlock.ErrSessionEnded)
		return false, again(c.name, fmt.Errorf("%w (%w)", interlock.ErrSessionEnded, err))
	case err != nil:
		return false, failed(rctx, "acquire", c.name, err)
	}
	if err := c.session.proceeds(floor, reply.Header.Revision); err != nil {
		return false, err
	}
	return d.answered(c, reply, noWait), nil
}

// again says that the place in the line is gone, or was never taken.
func again(name string, cause error) error {
	return &interlock.Error{Op: "acquire", Driver: driverName, Name: name, Kind: interlock.Retryable, Err: cause}
}

// conditions make the entry happen once, with the base that it stores, and for
// noWait only into an empty line.
func (d *Driver) conditions(c *contender, base base, noWait bool) []clientv3.Cmp {
	absent := clientv3.Compare(clientv3.CreateRevision(c.key), "=", 0)
	if noWait {
		absent = clientv3.Compare(clientv3.CreateRevision(c.line), "=", 0).WithPrefix()
	}
	return []clientv3.Cmp{absent, clientv3.Compare(clientv3.ModRevision(d.layout.base()), "=", base.mod)}
}

// entry writes the contender, and deletes the keys that this owner left under
// sessions that ran out.
func (d *Driver) entry(c *contender, base base) []clientv3.Op {
	value := record{Owner: c.owner, Base: base.value, Asked: d.options.Now().UTC()}.String()
	d.mu.Lock()
	c.sent = sent{value: value, base: base.value}
	d.mu.Unlock()
	ops := make([]clientv3.Op, 1, len(c.stale)+2) // and the read of the line
	ops[0] = clientv3.OpPut(c.key, value, clientv3.WithLease(c.session.id))
	for _, key := range c.stale {
		ops = append(ops, clientv3.OpDelete(key))
	}
	return ops
}

// answered takes the line from a reply. It is false if nothing but a new base
// was in the way, or if the reply is older than what the line needs since the
// watch was reopened: asking again only reads.
func (d *Driver) answered(c *contender, reply *clientv3.TxnResponse, noWait bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := len(reply.Responses) - 1
	if !reply.Succeeded {
		at = 0
		c.session.counter.see(reply.Responses[1].GetResponseRange().Kvs)
	}
	places := c.session.queues.placesOf(reply.Responses[at].GetResponseRange().Kvs)
	entered := slices.ContainsFunc(places, func(p place) bool { return p.key == c.key })
	if !entered && (!noWait || len(places) == 0) {
		return false
	}
	if entered {
		c.stale = nil
	}
	c.session.queues.list(c.line, reply.Header.Revision, places)
	switch {
	case c.session.queues.ended:
		c.state = outdated
	case !entered || c.state != asking:
	case c.session.queues.unlisted(c.line):
		return false
	default:
		c.state = dropped // it came and went before this reply was read
	}
	return true
}

// answerNow ends a request that does not wait: granted, or nothing left behind.
func (d *Driver) answerNow(ctx context.Context, c *contender) (driver.Grant, error) {
	d.mu.Lock()
	g, done, err := d.outcome(c)
	holder := c.session.queues.holder(c.line)
	absent := c.state == asking
	if !done && absent {
		d.forget(c)
	}
	d.mu.Unlock()
	switch {
	case done:
		return g, err
	case absent:
		return g, &interlock.HeldError{Name: c.name, Owner: holder}
	}
	if err := d.Release(ctx, c.name, c.owner); err != nil {
		return g, err
	}
	return g, &interlock.HeldError{Name: c.name, Owner: holder}
}

// await waits for the turn of a contender in line.
func (d *Driver) await(ctx context.Context, c *contender) (driver.Grant, error) {
	for {
		d.mu.Lock()
		g, done, err := d.outcome(c)
		d.mu.Unlock()
		if done {
			return g, err
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			return g, &interlock.Error{Op: "acquire", Driver: driverName, Name: c.name,
				Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		}
	}
}

// outcome is what an Acquire has to say by now. The mutex is held.
func (d *Driver) outcome(c *contender) (g driver.Grant, done bool, err error) {
	switch {
	case d.closed:
		return g, true, errClosed("acquire", c.name)
	case c.state == leaving:
		return g, true, &interlock.Error{Op: "acquire", Driver: driverName, Name: c.name,
			Kind: interlock.Definite, Err: interlock.ErrReleased}
	case c.state == dropped:
		return g, true, again(c.name, fmt.Errorf("its key was deleted: %w", interlock.ErrLost))
	case c.state == outdated, c.state == holding && c.session.term.Remaining() <= 0:
		return g, true, again(c.name, interlock.ErrSessionEnded)
	case c.state == holding:
		return c.grant(), true, nil
	}
	return g, false, nil
}
