package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// baseAttempts bounds how often one Acquire repeats a refused request, because a session that
// opened meanwhile raised the base.
const baseAttempts = 8

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx
// is done. A single request is bounded by a third of the TTL, 1 s to 5 s. Without
// contention Acquire is one request.
//
// Besides the errors of the interface: Retryable with interlock.ErrSessionEnded
// or interlock.ErrLost in its chain means that the place in the queue is lost. The same call
// takes a new one.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := d.acquire(ctx, r)
	if err != nil {
		d.dropEvents(identity{r.Name, r.Owner})
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
	c, err := d.register(s, r)
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
	g, err := d.await(ctx, c)
	if err == nil && c.under.Load() != nil && g.Lease.Remaining() <= r.MinLease {
		err = c.session.moveOne(c)
	}
	return g, err
}

func check(ctx context.Context, r driver.Request) error {
	if err := checkName("acquire", r.Name); err != nil {
		return err
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName {
		return problem("acquire", r.Name, interlock.Bug, fmt.Errorf("the owner has %d bytes, 1 to %d are allowed", len(r.Owner), driver.MaxName))
	}
	if ctx.Err() != nil {
		return problem("acquire", r.Name, interlock.Definite, context.Cause(ctx))
	}
	return nil
}

// clear deletes the owner's key if another client wrote it, because the request would only find
// it again.
func (d *Driver) clear(ctx context.Context, s *session, id identity) error {
	d.mu.Lock()
	c := d.contenders[id]
	barred := c != nil && c.session == s && s.queues.isDeleting(c.key)
	d.mu.Unlock()
	if !barred {
		return nil
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	rev, err := d.delete(rctx, c.key)
	if err != nil {
		return failed(rctx, "acquire", id.name, err)
	}
	s.removed(rev, c.key)
	return nil
}

// register returns the owner's contender. A new one joins its line, so that no later event
// about its key is missed.
func (d *Driver) register(s *session, r driver.Request) (*contender, error) {
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
	c := &contender{identity: id, line: d.layout.line(r.Name), session: s, events: r.Events}
	if old != nil {
		c.stale = old.remains(s)
		old.session.queues.leave(old)
	}
	c.key = s.queues.free(c.line, s.id)
	d.contenders[id] = c
	s.queues.join(c)
	return c, nil
}

// remains lists the keys of an old contender that etcd may still keep.
func (c *contender) remains(now *session) []string {
	if c.session == now || c.session.revoked && !c.aside || c.state == dropped {
		return c.stale
	}
	return append(slices.Clone(c.stale), c.key)
}

func (d *Driver) unanswered(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.state == asking
}

// ask adds the contender to its line and reads the line in the same transaction.
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
	alone := d.isAlone(c, noWait)
	under := c.session.id
	if !alone && !noWait {
		w, err := c.session.waiting(ctx, c.name)
		if err != nil {
			return false, err
		}
		if w != nil {
			under = w.id
			d.setAside(c)
		}
	}
	floor := c.session.floor()
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	d.addPending(1, c)
	defer d.addPending(-1, c)
	reply, err := d.requests.Do(rctx, c.line, d.entry(c, base, alone, under))
	switch {
	case leaseGone(err) && under != c.session.id:
		c.session.waitingGone(under)
		return false, nil
	case leaseGone(err):
		c.session.end(interlock.ErrSessionEnded)
		return false, again(c.name, fmt.Errorf("%w (%w)", interlock.ErrSessionEnded, err))
	case err != nil:
		return false, c.session.unknown(failed(rctx, "acquire", c.name, err), c)
	}
	if err := c.session.proceeds(floor, reply.Header.Revision); err != nil {
		return false, err
	}
	return d.answered(c, reply, base.value, alone, noWait), nil
}

func (d *Driver) setAside(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.aside = true
}

// isAlone reports whether c is probably the only one in its line, or wants it only then. The owner's
// keys of expired sessions count as others.
func (d *Driver) isAlone(c *contender, noWait bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(c.stale) == 0 && (noWait || !c.session.queues.isCrowded(c.line))
}

// again returns the error that the place in the line is lost, or was never taken.
func again(name string, cause error) error {
	return problem("acquire", name, interlock.Retryable, cause)
}

// entry returns the request that adds a contender to its line once, under a lease and with the base
// that it stores. alone does so only if the line is empty, and otherwise reads it. The other form
// deletes the owner's keys of expired sessions, and reads the line in any case.
func (d *Driver) entry(c *contender, base base, alone bool, under clientv3.LeaseID) *pb.TxnRequest {
	key, list := []byte(c.key), opReadLine(c.line)
	r := &pb.TxnRequest{
		Compare: []*pb.Compare{absent(key, nil), unchanged(d.base, base.mod)},
		Success: []*pb.RequestOp{opPut(key, d.value(c, base), under)},
		Failure: []*pb.RequestOp{list, d.readBase},
	}
	if alone {
		r.Compare[0] = absent(list.GetRequestRange().Key, list.GetRequestRange().RangeEnd)
		return r
	}
	for _, old := range c.stale {
		r.Success = append(r.Success, opDelete(old))
	}
	r.Success = append(r.Success, list)
	return r
}

// value returns the value of a contender's key.
func (d *Driver) value(c *contender, base base) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.sent.value == nil || c.sent.base != base.value {
		value := record{Owner: c.owner, Base: base.value, Asked: d.options.Now().UTC()}.encode()
		c.sent = sent{value: value, base: base.value}
	}
	return c.sent.value
}

// answered updates the line from a reply. It is false if another contender, or a new base,
// blocks the request, or if the line needs a later reply. That is so after the watch was
// reopened or has reported later deletions: the repeated request only reads.
func (d *Driver) answered(c *contender, reply *pb.TxnResponse, base int64, alone, noWait bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	places := c.session.lineIn(c, reply, base, alone)
	entered := slices.ContainsFunc(places, func(p place) bool { return p.key == c.key })
	if len(places) > 1 || !entered && len(places) > 0 {
		c.session.queues.crowded[c.line] = true
	}
	if !entered && (!noWait || len(places) == 0) {
		return false
	}
	if entered {
		c.stale = nil
		c.session.queues.own(c.key)
	}
	c.session.queues.list(c.line, reply.Header.Revision, places)
	switch {
	case c.session.queues.ended:
		c.state = outdated
	case !entered || c.state != asking:
	case c.session.queues.unlisted(c.line, reply.Header.Revision):
		return false
	default:
		c.state = dropped // another client wrote the key before c
		c.session.queues.scheduleDelete(c.key)
	}
	return true
}

// lineIn returns the line after an entry answered by reply. A contender that found
// the line empty is alone in it, with the base that the request stored.
func (s *session) lineIn(c *contender, reply *pb.TxnResponse, base int64, alone bool) []place {
	last := reply.Responses[len(reply.Responses)-1]
	switch {
	case !reply.Succeeded:
		s.counter.observe(last.GetResponseRange().Kvs)
		last = reply.Responses[0]
	case alone:
		return []place{{key: c.key, created: reply.Header.Revision, base: base, owner: c.owner, lease: s.id}}
	}
	return s.queues.placesOf(last.GetResponseRange().Kvs)
}

// answerNow ends a request that does not wait: it is granted, or its key is removed.
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

// await waits until a contender is first in its line.
func (d *Driver) await(ctx context.Context, c *contender) (driver.Grant, error) {
	for {
		d.mu.Lock()
		g, done, err := d.outcome(c)
		if !done && c.changed == nil {
			c.changed = make(chan struct{}, 1)
		}
		d.mu.Unlock()
		if done {
			return g, err
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			return g, problem("acquire", c.name, interlock.Uncertain, context.Cause(ctx))
		}
	}
}

// outcome returns the result of an Acquire, if it is done. The caller holds the driver's mutex.
func (d *Driver) outcome(c *contender) (g driver.Grant, done bool, err error) {
	switch {
	case d.closed:
		return g, true, errClosed("acquire", c.name)
	case c.state == leaving:
		return g, true, problem("acquire", c.name, interlock.Definite, interlock.ErrReleased)
	case c.state == dropped:
		return g, true, again(c.name, fmt.Errorf("its key was deleted: %w", interlock.ErrLost))
	case c.state == outdated, c.state == holding && (lease{c}).Remaining() <= 0:
		return g, true, again(c.name, interlock.ErrSessionEnded)
	case c.state == holding:
		return c.grant(), true, nil
	}
	return g, false, nil
}
