package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// contender is one owner's attempt at a name, and its outcome. The driver's mutex
// guards its mutable fields.
type contender struct {
	identity
	object string
	events driver.Events
	stage  stage
	base   int64 // of the last acquiring write
	// doubtful: a write on revision risk, 0 if there was no Lease, is under way or
	// its outcome is unknown. It can arrive while the Lease has that revision.
	doubtful bool
	risk     int64

	grant   driver.Grant
	term    *boottime.Lease
	now     object           // the Lease as we last wrote or read it
	stamp   time.Time        // the last one written, or tried
	due     boottime.Instant // when to renew
	renewal bool             // one is under way
}

type stage int

const (
	asking  stage = iota // it holds nothing, as far as known
	holding              // it has a term, and is renewed
	ended                // its term is over; the Lease may still name it
	lost                 // its term is over, and the Lease no longer names it
	leaving              // its release is due
)

// register returns the owner's contender, or a new one.
func (d *Driver) register(ctx context.Context, r driver.Request) (*contender, error) {
	at, err := d.layout.locate("acquire", r.Name)
	switch {
	case err != nil:
		return nil, err
	case r.Owner == "" || len(r.Owner) > driver.MaxName || !utf8.ValidString(r.Owner):
		return nil, refused("acquire", r.Name, fmt.Errorf("the owner must be 1 to %d bytes of UTF-8", driver.MaxName))
	case ctx.Err() != nil:
		return nil, problem("acquire", r.Name, interlock.Definite, context.Cause(ctx))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed("acquire", r.Name)
	}
	id := identity{r.Name, r.Owner}
	c := d.contenders[id]
	if c == nil {
		c = &contender{identity: id, object: at}
		d.contenders[id] = c
	}
	if c.stage == lost || c.stage == leaving || c.stage == ended {
		c.stage, c.doubtful = asking, true // the present state must be read
	}
	c.events = r.Events
	return c, nil
}

// abandon ends the events of a failed call, and forgets it if it left nothing.
func (d *Driver) abandon(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stage == holding {
		return
	}
	c.events = driver.Events{}
	if c.stage == asking && !c.doubtful {
		d.forget(c)
	}
}

func (d *Driver) forget(c *contender) {
	if d.contenders[c.identity] == c {
		delete(d.contenders, c.identity)
	}
}

// endClaim ends the claim in this process; nil means that there is nothing to send.
// known means that the Lease should be as we left it.
func (d *Driver) endClaim(name, owner string) (c *contender, known bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, errClosed("release", name)
	}
	if c = d.contenders[identity{name, owner}]; c == nil {
		return nil, false, nil
	}
	known = c.stage == holding
	c.events = driver.Events{}
	if c.term != nil {
		c.term.End()
	}
	nothing := c.stage == lost || c.stage == asking && !c.doubtful
	c.stage = leaving
	d.view.wake(c.object) // a waiting Acquire
	if nothing {
		d.forget(c)
		return nil, false, nil
	}
	return c, known, nil
}

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
