package kube

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// attempts bounds how often one call reads again because the Lease changed before
// its write. Each of these answers is a definite refusal.
const attempts = 8

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

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx is
// done; a single request is bounded by half of the TTL, at most five seconds.
// Without contention it is one request. The first Acquire of a name by this driver also checks
// for locks of old kinds, in two requests. If there is one, it returns a [*LegacyLockError]. For
// a new Lease, one more request sets the base of its tokens. A Release of the same owner ends it
// with interlock.ErrReleased.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c, err := d.register(ctx, r)
	if err != nil {
		return driver.Grant{}, err
	}
	grant, err := d.acquire(ctx, c, r.NoWait)
	if err != nil {
		d.abandon(c)
	}
	return grant, err
}

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

func (d *Driver) acquire(ctx context.Context, c *contender, noWait bool) (driver.Grant, error) {
	if grant, ok := d.granted(c); ok {
		return grant, nil
	}
	if err := d.clear(ctx, c.name, c.object); err != nil {
		return driver.Grant{}, err
	}
	q := &queue{d: d, c: c, noWait: noWait}
	defer q.leave()
	if c.doubtful {
		if err := d.settle(ctx, c); err != nil {
			return driver.Grant{}, err
		}
		q.fresh = true
	}
	for range q.rounds() {
		grant, err := d.round(ctx, q)
		if err != nil || grant.Lease != nil {
			return grant, err
		}
	}
	return driver.Grant{}, problem("acquire", c.name, interlock.Retryable, errOthers)
}

// round reads the Lease once and acts on it. If it returns neither a grant nor an
// error, try again.
func (d *Driver) round(ctx context.Context, q *queue) (driver.Grant, error) {
	s := q.look()
	if err := d.wanted(q.c); err != nil {
		return driver.Grant{}, err
	}
	v := s.judge(q.c.owner, boottime.Now(), d.options.TTL)
	switch {
	case v.state == held && !q.noWait:
		return driver.Grant{}, q.wait(ctx, v)
	case v.state == held && q.fresh:
		return driver.Grant{}, &interlock.HeldError{Name: q.c.name, Owner: v.holder}
	case v.state == held:
		return driver.Grant{}, q.read(ctx)
	}
	grant, err := d.write(ctx, q.c, s, v)
	if errors.Is(err, errMoved) {
		return driver.Grant{}, q.awaitView(ctx, s)
	}
	return grant, err
}

// granted returns the grant of an earlier call.
func (d *Driver) granted(c *contender) (driver.Grant, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.grant, c.stage == holding && c.term.Remaining() > 0
}

// errMoved: the Lease has changed since it was read. Nothing was written.
var errMoved = errors.New("the Lease has changed")

// write puts the owner into a free Lease, or confirms an earlier write of the same
// owner.
func (d *Driver) write(ctx context.Context, c *contender, s sight, v verdict) (driver.Grant, error) {
	if s.exists() && s.lease.Spec.Strategy != nil {
		return driver.Grant{}, problem("acquire", c.name, interlock.Definite,
			errors.New("the Lease is assigned by coordinated leader election, and cannot be taken"))
	}
	draft, err := d.draft(ctx, c, s, v)
	if err != nil {
		return driver.Grant{}, err
	}
	undo, err := d.risk(c, s)
	if err != nil {
		return driver.Grant{}, err
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	sent := boottime.Now()
	o, err := d.client.write(rctx, draft)
	if err != nil {
		err = d.writeFailed(rctx, c, s, err)
		if errors.Is(err, errMoved) || interlock.Kind(err) != interlock.Uncertain {
			undo()
		}
		return driver.Grant{}, err
	}
	d.learn(c.object, o)
	if c.grant.Token == 0 {
		if err := d.pin(c, o); err != nil {
			return driver.Grant{}, err
		}
	}
	return d.hold(c, o, sent)
}

// wanted returns an error once the owner has released.
func (d *Driver) wanted(c *contender) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.wanted()
}

// wanted returns an error once the owner has released. The caller holds the mutex.
func (c *contender) wanted() error {
	if c.stage == leaving {
		return problem("acquire", c.name, interlock.Definite, interlock.ErrReleased)
	}
	return nil
}

// risk records that a write over s is about to be sent, so that a release takes it
// into account; undo reverts that if it had no effect.
func (d *Driver) risk(c *contender, s sight) (undo func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := c.wanted(); err != nil {
		return nil, err
	}
	doubtful, risk := c.doubtful, c.risk
	c.doubtful, c.risk = true, 0
	if s.exists() {
		c.risk = s.rev
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if c.stage != leaving {
			c.doubtful, c.risk = doubtful, risk
		}
	}, nil
}

// draft returns the Lease to write.
func (d *Driver) draft(ctx context.Context, c *contender, s sight, v verdict) (*coordination.Lease, error) {
	draft := s.draft(d.options.Namespace, c.object)
	base, err := d.baseFor(ctx, c.name, s.object)
	if err != nil {
		return nil, err
	}
	if v.state == mine {
		if c.base = max(c.base, base); c.grant.Token == 0 {
			err = d.pin(c, s.object)
		}
		renewRecord(draft, c.owner, c.base, c.grant.Token, d.seconds(), d.nextStamp(c, s.object))
		d.finish(draft, s.object)
		return draft, err
	}
	c.base, c.grant.Token, c.stamp = base, 0, d.options.Now()
	begin(draft, c.owner, base, d.seconds(), c.stamp)
	label(draft, d.layout.prefix, c.name)
	d.finish(draft, s.object)
	return draft, nil
}

// finish removes the token from a draft over o if there are no tokens.
func (d *Driver) finish(draft *coordination.Lease, o object) {
	if d.advisory {
		advise(draft, o)
	}
}

// seconds returns the TTL in the unit of a Lease.
func (d *Driver) seconds() int32 { return int32(d.options.TTL / time.Second) }

// writeFailed classifies the error of a write.
func (d *Driver) writeFailed(ctx context.Context, c *contender, s sight, err error) error {
	switch {
	case moved(err):
		return errMoved
	case apierrors.IsNotFound(err) && s.exists():
		d.change(c.object, func(now *sight, at boottime.Instant) bool { return now.absent(s.rev, at) })
		return errMoved
	case apierrors.IsNotFound(err):
		return problem("acquire", c.name, interlock.Definite, fmt.Errorf("namespace %s: %w (%w)", d.options.Namespace, errNoNamespace, err))
	}
	return failed(ctx, "acquire", c.name, err)
}

// pin sets the token of the term: the first revision that we read while the Lease
// names the owner, which is unique to this attempt.
func (d *Driver) pin(c *contender, o object) error {
	if d.advisory {
		return nil
	}
	if token := o.token(); token.Valid() {
		c.grant.Token = token
		return nil
	}
	token, err := interlock.NewToken(c.base+o.rev, 0)
	c.grant.Token = token
	return err
}

// hold starts the term requested at sent. If the owner has released meanwhile, it
// releases the Lease again.
func (d *Driver) hold(c *contender, o object, sent boottime.Instant) (driver.Grant, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := c.wanted(); err != nil {
		return driver.Grant{}, err
	}
	c.stage, c.doubtful, c.now = holding, false, o
	c.term = boottime.NewLease(sent, d.options.TTL)
	c.grant.Lease = c.term
	c.due = sent.Add(d.pace.renew)
	nudge(d.tendNow)
	return c.grant, nil
}

// settle reads the Lease after an earlier write with an unknown outcome.
func (d *Driver) settle(ctx context.Context, c *contender) error {
	o, _, err := d.read(ctx, "acquire", c.name, c.object)
	if err != nil {
		return doubtful("acquire", c.name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stage != leaving && o.holder() != c.owner && o.rev != c.risk {
		c.doubtful, c.risk = false, 0
		c.grant.Token = 0
	}
	return nil
}
