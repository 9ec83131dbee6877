package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// This file is the protocol of a lock, that of Mutex in go.etcd.io/etcd/client/v3/concurrency, which
// etcdctl lock uses too, with a token and in one request. The keys below PREFIX NAME/ are the queue of
// NAME, in the order of their create revisions. The first one holds the lock.
//
//	acquire  entry: one transaction puts the owner's key under the session's lease, if that key is
//	         absent and the base of tokens is unchanged. It reads the queue, too: see answered.
//	         If the queue is probably empty, it puts the key only then, and the key is the first.
//	token    base + create revision of the key; see counter.go.
//	wait     line.go keeps the order of the queue, from what was read and from deletions, which the one
//	         watch of the session reports (watch.go). A waiter's key may be under a shorter lease
//	         (waiting.go).
//	renewal  session.go keeps the lease alive. All claims of the process share it and its deadline.
//	loss     line.go finds the key gone, or session.go finds the lease gone or its time over.
//	release  deletion: one request deletes the key.
//
// If the outcome of an entry is unknown, the caller repeats it: the condition that the key is absent
// makes it idempotent. If the outcome of a deletion is unknown, session.go repeats it. A key that a late
// request wrote for a caller that has gone is found by session.findStrays.

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

func deletion(keys []string) *pb.TxnRequest {
	r := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(keys))}
	for i, key := range keys {
		r.Success[i] = opDelete(key)
	}
	return r
}

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx
// is done. A single request is bounded by a third of the TTL, 1 s to 5 s. Without
// contention Acquire is one request.
//
// Besides the errors of the interface: Retryable with interlock.ErrSessionEnded
// or interlock.ErrLost in its chain means that the place in the queue is lost. The same call
// takes a new one. If the outcome of a request is unknown and its caller gives up, etcd may still
// execute it. Its key then blocks the name for maxPause (16) heartbeats, which is 16 s at most, and
// two requests.
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
		return driver.Grant{}, harmless(err)
	}
	c, err := d.enlist(ctx, s, r)
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
		err = c.session.moveOne(ctx, c)
	}
	return g, err
}

// ask adds the contender to its line and reads the line in the same transaction.
func (d *Driver) ask(ctx context.Context, c *contender, noWait bool) error {
	for range baseAttempts {
		base, err := c.session.counter.current(ctx)
		if err != nil {
			return harmless(err)
		}
		answered, err := d.askOnce(ctx, c, base, noWait)
		if answered || err != nil {
			return err
		}
	}
	return errBaseChanges(c.name)
}

// askOnce sends one transaction. answered is false if the base had changed and
// nothing was written.
func (d *Driver) askOnce(ctx context.Context, c *contender, base base, noWait bool) (answered bool, err error) {
	s := c.session
	if err := d.connected(ctx, opAcquire, c.name); err != nil {
		return false, err
	}
	alone, under := d.isAlone(c, noWait), s.id
	if !alone && !noWait {
		if under, err = s.leaseToWait(ctx, c); err != nil {
			return false, err
		}
	}
	floor := s.floor()
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	d.addPending(1, c)
	defer d.addPending(-1, c)
	reply, err := d.requests.Do(rctx, c.line, d.entry(c, base, alone, under))
	switch {
	case leaseGone(err) && under != s.id:
		s.waitingGone(under)
		return false, nil
	case err != nil:
		return false, s.unasked(rctx, opAcquire, err, c)
	}
	if err := s.proceeds(floor, reply.Header.Revision); err != nil {
		return false, err
	}
	return d.answered(c, reply, base.value, alone, noWait), nil
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
			return g, problem(opAcquire, c.name, interlock.Uncertain, context.Cause(ctx))
		}
	}
}

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

const opAcquire = "acquire"

// baseAttempts bounds how often one Acquire repeats a refused request, because a session that
// opened meanwhile raised the base.
const baseAttempts = 8

func check(ctx context.Context, r driver.Request) error {
	if err := checkName(opAcquire, r.Name); err != nil {
		return err
	}
	for _, store := range []string{reserved + "journal:", reserved + "shard:", reserved + "kv:"} {
		if strings.Contains(r.Name, store) { // the keys of these stores have slashes, and would be in its queue
			return problem(opAcquire, r.Name, interlock.Bug, fmt.Errorf("%w: it contains %q", interlock.ErrName, store))
		}
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName {
		return problem(opAcquire, r.Name, interlock.Bug, fmt.Errorf("the owner has %d bytes, 1 to %d are allowed", len(r.Owner), driver.MaxName))
	}
	if ctx.Err() != nil {
		return unsent(ctx, opAcquire, r.Name)
	}
	return nil
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
	return problem(opAcquire, name, interlock.Retryable, cause)
}

func errBaseChanges(name string) error {
	return again(name, errors.New("the base of tokens kept changing"))
}

// unasked returns the error of a request that adds contenders to their lines. If its outcome is
// unknown, the keys may appear later: a search for stray keys begins.
func (s *session) unasked(ctx context.Context, op string, err error, cs ...*contender) error {
	if leaseGone(err) {
		s.end(interlock.ErrSessionEnded)
		return again(cs[0].name, fmt.Errorf("%w (%w)", interlock.ErrSessionEnded, err))
	}
	return s.unknown(failed(ctx, op, cs[0].name, err), cs...)
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

// outcome returns the result of an Acquire, if it is done. The caller holds the driver's mutex.
func (d *Driver) outcome(c *contender) (g driver.Grant, done bool, err error) {
	switch {
	case d.closed:
		return g, true, errClosed(opAcquire, c.name)
	case c.state == leaving:
		return g, true, problem(opAcquire, c.name, interlock.Definite, interlock.ErrReleased)
	case c.state == dropped:
		return g, true, again(c.name, fmt.Errorf("its key was deleted: %w", interlock.ErrLost))
	case c.state == outdated, c.state == holding && (lease{c}).Remaining() <= 0:
		return g, true, again(c.name, interlock.ErrSessionEnded)
	case c.state == holding:
		return c.grant(), true, nil
	}
	return g, false, nil
}
