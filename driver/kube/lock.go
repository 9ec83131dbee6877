package kube

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// This file is the protocol of a lock, that of k8s.io/client-go/tools/leaderelection, with a token. A
// lock is a Lease, and each write of it requires the revision that was read.
//
//	acquire  write: puts the owner into a Lease without a holder, or whose holder has not renewed it
//	         for as long as it wrote, by our clock. The decision is judge, in lease.go.
//	token    base + revision of the first write that names the owner; see token.go and pin.
//	wait     queue: until the view changes (view.go), or the holder's lease ends. Those who wait race.
//	renewal  hold.go renews each held Lease.
//	loss     hold.go finds another holder in the Lease, or its time over.
//	release  leave: clears the holder and keeps the Lease.
//
// If the outcome of a write is unknown, settle reads the Lease. A Release touches it if that write could
// still arrive, which then fails by its revision.

// attempts bounds how often one call reads again because the Lease changed before
// its write. Each of these answers is a definite refusal.
const attempts = 8

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
	rounds := math.MaxInt
	if noWait {
		rounds = attempts
	}
	for range rounds {
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
		q.reportWaiting(v.holder)
		return driver.Grant{}, q.sleep(ctx, v.until)
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

// finish removes the token from a draft over o, and keeps the base of o, if there are no tokens.
func (d *Driver) finish(draft *coordination.Lease, o object) {
	if !d.advisory {
		return
	}
	draft.Annotations[tokenKey] = noToken
	delete(draft.Annotations, baseKey)
	if o.exists() && o.lease.Annotations[baseKey] != "" {
		draft.Annotations[baseKey] = o.lease.Annotations[baseKey]
	}
}

// seconds returns the TTL in the unit of a Lease.
func (d *Driver) seconds() int32 { return int32(d.options.TTL / time.Second) }

// writeFailed classifies the error of a write.
func (d *Driver) writeFailed(ctx context.Context, c *contender, s sight, err error) error {
	switch {
	case moved(err) && (s.exists() || apierrors.IsAlreadyExists(err)): // other conflicts of a new Lease are those of a quota
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

// hold starts the term requested at sent. If the owner has released meanwhile, that
// Release ends it.
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

// Release implements driver.Fenced: one request, which clears the holder as
// client-go does and keeps the Lease. If the outcome of an Acquire is unknown, and
// its write could still arrive, Release touches the Lease so that it cannot. For an
// owner unknown to this driver it sends nothing.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if _, err := d.layout.locate("release", name); err != nil {
		return err
	}
	c, known, err := d.endClaim(name, owner)
	if c == nil || err != nil {
		return err
	}
	if ctx.Err() != nil {
		return problem("release", name, interlock.Uncertain, context.Cause(ctx))
	}
	for range attempts {
		if !known {
			if c.now, _, err = d.read(ctx, "release", name, c.object); err != nil {
				return doubtful("release", name, err)
			}
		}
		done, err := d.leave(ctx, c)
		if done || err != nil {
			return err
		}
		known = false
	}
	return problem("release", name, interlock.Retryable, errOthers)
}

// leave removes the owner from the Lease as it was last read. done means that the server has
// confirmed that no term or pending write of the owner remains.
func (d *Driver) leave(ctx context.Context, c *contender) (done bool, err error) {
	named := c.now.holder() == c.owner
	if !named && (!c.doubtful || c.now.rev != c.risk) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.forget(c)
		return true, nil
	}
	draft := c.now.draft(d.options.Namespace, c.object)
	if named || !c.now.exists() {
		clearHolder(draft, d.options.Now())
	}
	if !named || d.advisory { // a released Lease without tokens has nothing else that shows sweep whose it is
		draft.Annotations[touchKey] = d.options.Now().UTC().Format(time.RFC3339Nano)
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	o, err := d.client.write(rctx, draft)
	switch {
	case moved(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, failed(rctx, "release", c.name, err)
	}
	d.learn(c.object, o)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(c)
	return true, nil
}

// queue is a waiting call of Acquire. Kubernetes does not know it. It wakes by the
// watch, at the end of the holder's lease, and after a long time without an event. A live holder
// renews, so it causes no such time.
type queue struct {
	d        *Driver
	c        *contender
	noWait   bool
	fresh    bool             // the Lease was read during the call
	woken    chan struct{}    // nil until its first look
	reported bool             // Events.Waiting was called
	holder   string           // the last reported holder
	silent   boottime.Instant // when it last read the Lease
}

// read reads the Lease, for a call that does not wait.
func (q *queue) read(ctx context.Context) error {
	q.fresh = true
	_, _, err := q.d.read(ctx, "acquire", q.c.name, q.c.object)
	return err
}

// look returns the known state of the Lease. Later changes wake the queue.
func (q *queue) look() sight {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.woken == nil {
		q.woken = make(chan struct{}, 1)
		if d.view.waiting[q.c.object] == nil {
			d.view.waiting[q.c.object] = map[chan struct{}]bool{}
		}
		d.view.waiting[q.c.object][q.woken] = true
	}
	return d.view.now(q.c.object)
}

func (q *queue) leave() {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.view.waiting[q.c.object], q.woken)
	if len(d.view.waiting[q.c.object]) == 0 {
		delete(d.view.waiting, q.c.object)
	}
}

// awaitView waits until the view shows the change that a write over tried met; a call
// that does not wait reads it.
func (q *queue) awaitView(ctx context.Context, tried sight) error {
	if q.noWait {
		return q.read(ctx)
	}
	q.reportWaiting("")
	for {
		if s := q.look(); s.rev != tried.rev || s.exists() != tried.exists() {
			return nil
		}
		if err := q.sleep(ctx, boottime.Now().Add(q.d.pace.quiet)); err != nil {
			return err
		}
	}
}

// reportWaiting reports that it waits, and for which holder once that is known.
func (q *queue) reportWaiting(holder string) {
	if q.reported && (holder == "" || holder == q.holder) {
		return
	}
	q.reported, q.holder = true, holder
	q.d.mu.Lock()
	defer q.d.mu.Unlock() // so that the report does not follow a Release
	if waiting := q.c.events.Waiting; waiting != nil {
		waiting(driver.Place{Ahead: -1, Holder: holder})
	}
}

// sleep returns when the Lease changed, at until, or after reading a Lease that had
// no event for long.
func (q *queue) sleep(ctx context.Context, until boottime.Instant) error {
	now := boottime.Now()
	heard := max(q.d.look(q.c.object).heard, q.silent)
	if heard == 0 {
		heard, q.silent = now, now
	}
	quiet := heard.Add(q.d.pace.quiet)
	timer := time.NewTimer(min(until, quiet).Sub(now))
	defer timer.Stop()
	select {
	case <-q.woken:
		return q.d.wanted(q.c)
	case <-ctx.Done():
		return problem("acquire", q.c.name, interlock.Uncertain, context.Cause(ctx))
	case <-q.d.ctx.Done():
		return errClosed("acquire", q.c.name)
	case <-timer.C:
	}
	if boottime.Now() < quiet {
		return nil
	}
	return q.ask(ctx)
}

// ask reads the Lease, and reopens the watch if that missed a change. A server that
// does not answer now may do so later.
func (q *queue) ask(ctx context.Context) error {
	q.silent = boottime.Now()
	_, news, err := q.d.read(ctx, "acquire", q.c.name, q.c.object)
	if news {
		q.d.mu.Lock()
		q.d.view.reopen()
		q.d.mu.Unlock()
	}
	if interlock.Kind(err) == interlock.Retryable && ctx.Err() == nil {
		return nil
	}
	return err
}
