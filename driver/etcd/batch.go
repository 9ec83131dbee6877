package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const opAcquireAll = "acquire all"

// mostTogether bounds the names of one transaction: each takes two operations, and
// etcd allows 128 by default.
const mostTogether = 60

var _ driver.Batch = (*Driver)(nil)

var errNotDistinct = errors.New("names and owners are required, each once")

// AcquireAll acquires up to 60 names in one transaction, or none; see driver.Batch.
// Their keys have one create revision, so that their tokens are equal. With
// [Options].RawNames, one call cannot acquire a name together with one inside it,
// nor more names than a server with a lower --max-txn-ops allows.
func (d *Driver) AcquireAll(ctx context.Context, requests []driver.Request) ([]driver.Grant, error) {
	grants, err := d.acquireAll(ctx, requests)
	if err != nil {
		for _, r := range requests {
			d.dropEvents(identity{r.Name, r.Owner})
		}
	}
	return grants, err
}

func (d *Driver) acquireAll(ctx context.Context, requests []driver.Request) ([]driver.Grant, error) {
	if err := d.checkAll(ctx, requests); err != nil {
		return nil, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return nil, harmless(err)
	}
	cs, err := d.enlistAll(ctx, s, requests)
	if err != nil {
		return nil, err
	}
	held, err := d.askAll(ctx, s, cs)
	switch {
	case err != nil:
		return nil, err
	case held != nil:
		return nil, d.giveBack(ctx, cs, held)
	}
	return d.grants(cs)
}

func (d *Driver) checkAll(ctx context.Context, requests []driver.Request) error {
	if !driver.Distinct(requests) {
		return problem(opAcquireAll, "", interlock.Bug, errNotDistinct)
	}
	for _, r := range requests {
		if err := check(ctx, r); err != nil {
			return err
		}
	}
	if len(requests) > mostTogether {
		return notInOneStep(fmt.Errorf("at most %d", mostTogether))
	}
	if outer, inner, yes := d.layout.nested(requests); yes {
		return notInOneStep(fmt.Errorf("%q is inside %q", inner, outer))
	}
	return nil
}

func notInOneStep(why error) error {
	return problem(opAcquireAll, "", interlock.Definite, fmt.Errorf("%w: %w", driver.ErrNotInOneStep, why))
}

// nested returns two names if contenders of one are in the line of the other, too.
// Keys written at one revision would have no order there.
func (l layout) nested(requests []driver.Request) (outer, inner string, yes bool) {
	for _, a := range requests {
		for _, b := range requests {
			if a.Name != b.Name && strings.HasPrefix(l.line(b.Name), l.line(a.Name)) {
				return a.Name, b.Name, true
			}
		}
	}
	return "", "", false
}

// enlistAll returns the contenders. It first removes the owners' keys under sessions that expired
// here, because they would precede the new ones.
func (d *Driver) enlistAll(ctx context.Context, s *session, requests []driver.Request) ([]*contender, error) {
	cs := make([]*contender, len(requests))
	for i, r := range requests {
		c, err := d.enlist(ctx, s, r)
		if err != nil {
			return nil, err
		}
		if err := d.removeStale(ctx, c); err != nil {
			return nil, err
		}
		cs[i] = c
	}
	return cs, nil
}

func (d *Driver) removeStale(ctx context.Context, c *contender) error {
	d.mu.Lock()
	stale := c.stale
	d.mu.Unlock()
	if len(stale) == 0 {
		return nil
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	if _, err := d.delete(rctx, stale...); err != nil {
		return failed(rctx, opAcquireAll, c.name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.stale = nil
	return nil
}

// askAll adds all contenders to their lines, unless one of the lines has another contender.
func (d *Driver) askAll(ctx context.Context, s *session, cs []*contender) (*interlock.HeldError, error) {
	for range baseAttempts {
		missing := d.allUnanswered(cs)
		if len(missing) == 0 {
			return d.barrier(cs), nil
		}
		base, err := s.counter.current(ctx)
		if err != nil {
			return nil, harmless(err)
		}
		held, err := d.askAllOnce(ctx, s, missing, base)
		if errors.Is(err, driver.ErrNotInOneStep) {
			d.forgetAll(missing)
		}
		if held != nil || err != nil {
			return held, err
		}
	}
	return nil, errBaseChanges(cs[0].name)
}

func (d *Driver) allUnanswered(cs []*contender) (missing []*contender) {
	for _, c := range cs {
		if d.unanswered(c) {
			missing = append(missing, c)
		}
	}
	return missing
}

// barrier returns the holder of a line in which one of the contenders is not the first.
func (d *Driver) barrier(cs []*contender) *interlock.HeldError {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		if c.state == waiting {
			return &interlock.HeldError{Name: c.name, Owner: c.session.queues.holder(c.line)}
		}
	}
	return nil
}

// askAllOnce sends one transaction. It writes all keys if every line is empty and
// the stored base is current, and reads the lines in any case.
func (d *Driver) askAllOnce(ctx context.Context, s *session, cs []*contender, base base) (*interlock.HeldError, error) {
	r := &pb.TxnRequest{Compare: []*pb.Compare{unchanged(d.base, base.mod)}}
	for _, c := range cs {
		r.Compare = append(r.Compare, absent(span(c.line)))
		r.Success = append(r.Success, opPut([]byte(c.key), d.value(c, base), s.id))
		r.Failure = append(r.Failure, opReadLine(c.line))
	}
	r.Success, r.Failure = append(r.Success, r.Failure...), append(r.Failure, d.readBase)
	if err := d.connected(ctx, opAcquireAll, cs[0].name); err != nil {
		return nil, err
	}
	floor := s.floor()
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	d.addPending(1, cs...)
	defer d.addPending(-1, cs...)
	reply, err := d.commit(rctx, r)
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return nil, notInOneStep(err)
	case err != nil:
		return nil, s.unasked(rctx, opAcquireAll, err, cs...)
	}
	if err := s.proceeds(floor, reply.Header.Revision); err != nil {
		return nil, err
	}
	return d.answeredAll(s, cs, reply), nil
}

// answeredAll updates the lines from a reply, and returns the holder of one of them
// if it is not ours. Contenders that the reply does not cover stay unanswered: the
// base differed, or the reply is older than a line needs since the watch was
// reopened.
func (d *Driver) answeredAll(s *session, cs []*contender, reply *pb.TxnResponse) (held *interlock.HeldError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := reply.Responses
	if reply.Succeeded {
		lines = lines[len(cs):]
	} else {
		s.counter.observe(lines[len(cs)].GetResponseRange().Kvs)
	}
	for i, c := range cs {
		places := s.queues.placesOf(lines[i].GetResponseRange().Kvs)
		entered := slices.ContainsFunc(places, func(p place) bool { return p.key == c.key })
		if entered {
			s.queues.own(c.key)
		}
		s.queues.list(c.line, reply.Header.Revision, places)
		switch {
		case s.queues.ended:
			c.state = outdated
		case !entered && len(places) > 0, entered && places[0].key != c.key:
			held = &interlock.HeldError{Name: c.name, Owner: places[0].owner}
		case entered && c.state == asking && !s.queues.unlisted(c.line, reply.Header.Revision):
			c.state = dropped // another client wrote the key before c
			s.queues.scheduleDelete(c.key)
		}
	}
	return held
}

// giveBack removes the keys of the contenders, so that a refusal leaves nothing.
func (d *Driver) giveBack(ctx context.Context, cs []*contender, held error) error {
	for _, c := range cs {
		if d.unanswered(c) {
			d.forgetAll([]*contender{c})
			continue
		}
		if err := d.Release(ctx, c.name, c.owner); err != nil {
			return err
		}
	}
	return held
}

func (d *Driver) forgetAll(cs []*contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		d.forget(c)
	}
}

// grants returns all grants, or none.
func (d *Driver) grants(cs []*contender) ([]driver.Grant, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	grants := make([]driver.Grant, len(cs))
	for i, c := range cs {
		g, done, err := d.outcome(c)
		if err == nil && !done {
			err = again(c.name, fmt.Errorf("another contender is before it: %w", interlock.ErrLost))
		}
		if err != nil {
			return nil, err
		}
		grants[i] = g
	}
	return grants, nil
}
