package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// maxRenewals bounds the renewals under way. More would not end sooner, and would
// delay acquires and releases.
const maxRenewals = 16

// keepRenewing renews held Leases, each by itself, since the API has no batches.
func (d *Driver) keepRenewing() {
	for d.ctx.Err() == nil {
		timer := time.NewTimer(d.renewDue())
		select {
		case <-d.ctx.Done():
		case <-d.tendNow:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// renewDue starts due renewals, the longest due first, and returns when to check
// again.
func (d *Driver) renewDue() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := boottime.Now()
	next := now.Add(d.pace.renew)
	var due []*contender
	for _, c := range d.contenders {
		switch {
		case c.stage != holding || c.renewal:
		case c.term.RemainingAt(now) <= 0:
			c.stage = ended // it expires
		case c.due <= now:
			due = append(due, c)
		default:
			next = min(next, c.due)
		}
	}
	slices.SortFunc(due, func(a, b *contender) int { return cmp.Compare(a.due, b.due) })
	for _, c := range due[:min(len(due), maxRenewals-d.renewals)] {
		term := c.term
		c.renewal = true
		d.renewals++
		d.tasks.Go(func() { d.renew(c, term) })
	}
	return max(next.Sub(now), 0) // the end of each renewal triggers another check
}

// renew renews a term, and applies the outcome. It ignores a term that has ended
// meanwhile, and a later one.
func (d *Driver) renew(c *contender, term *boottime.Lease) {
	began := boottime.Now()
	sent, o, err := d.renewTerm(c, term)
	took := boottime.Now().Sub(began)
	d.mu.Lock()
	defer d.mu.Unlock()
	c.renewal = false
	d.renewals--
	nudge(d.tendNow)
	if c.stage != holding || c.term != term || d.closed {
		return
	}
	switch {
	case errors.Is(err, errMoved):
		c.now, c.due = o, boottime.Now() // it is still ours: repeat, at its new revision
		return
	case errors.Is(err, interlock.ErrLost):
		c.reportLost(err)
		return
	case err != nil:
		c.due = boottime.Now().Add(d.pace.retry)
	case !c.term.Renew(sent, d.options.TTL):
		c.stage = ended
		return
	default:
		c.now, c.due = o, sent.Add(d.pace.renew)
	}
	if c.events.Renewed != nil {
		c.events.Renewed(took, err)
	}
}

// reportLost ends a term that is no longer in the Lease.
func (c *contender) reportLost(cause error) {
	c.stage = lost
	c.term.End()
	if c.events.Lost != nil {
		c.events.Lost(cause)
	}
	c.events = driver.Events{}
}

// renewTerm writes the renewal. It was sent at sent, and o is the Lease afterwards.
// With errMoved nothing was written, and o is the current Lease, still ours.
func (d *Driver) renewTerm(c *contender, term *boottime.Lease) (sent boottime.Instant, o object, err error) {
	draft := d.renewal(c, term)
	if draft == nil {
		return 0, object{}, errOver
	}
	ctx, cancel := d.bounded(d.ctx)
	defer cancel()
	ctx, stop := context.WithTimeoutCause(ctx, max(term.Remaining(), 0), errSlow)
	defer stop()
	sent = boottime.Now()
	o, err = d.client.update(ctx, draft)
	switch {
	case err == nil:
		d.learn(c.object, o)
		return sent, o, nil
	case moved(err), apierrors.IsNotFound(err):
		o, err = d.inspectOwn(c)
		return sent, o, err
	}
	return sent, o, failed(ctx, "renew", c.name, err)
}

var errOver = errors.New("the term has ended")

// renewal returns the Lease to write; nil if the term is over.
func (d *Driver) renewal(c *contender, term *boottime.Lease) *coordination.Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stage != holding || c.term != term {
		return nil
	}
	base, err := c.now.base()
	if err != nil {
		base = 0 // ours is the better one
	}
	draft := c.now.draft(d.options.Namespace, c.object)
	renewRecord(draft, c.owner, max(base, c.base), c.grant.Token, d.seconds(), d.nextStamp(c, c.now))
	d.finish(draft, c.now)
	return draft
}

// nextStamp returns the time to write into a renewal of o.
func (d *Driver) nextStamp(c *contender, o object) time.Time {
	last := c.stamp
	if o.exists() && o.lease.Spec.RenewTime != nil && o.lease.Spec.RenewTime.After(last) {
		last = o.lease.Spec.RenewTime.Time
	}
	c.stamp = nextStamp(last, d.options.Now())
	return c.stamp
}

// inspectOwn reads a Lease that had changed since our write.
func (d *Driver) inspectOwn(c *contender) (object, error) {
	o, _, err := d.read(d.ctx, "renew", c.name, c.object)
	switch {
	case err != nil:
		return o, err
	case !o.exists():
		return o, problem("renew", c.name, interlock.Definite, fmt.Errorf("%w: the Lease was deleted", interlock.ErrLost))
	case o.holder() == "":
		return o, problem("renew", c.name, interlock.Definite, fmt.Errorf("%w: the Lease names no holder", interlock.ErrLost))
	case o.holder() != c.owner:
		return o, problem("renew", c.name, interlock.Definite, fmt.Errorf("%w: the Lease names %q", interlock.ErrLost, o.holder()))
	}
	return o, errMoved
}
