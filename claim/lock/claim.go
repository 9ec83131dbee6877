package lock

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Claim is a held lock with a token. It implements [interlock.Claim].
type Claim struct{ claim }

var _ interlock.Claim = (*Claim)(nil)

// Token returns the fencing token. It orders this claim among all claims on the name.
func (c *Claim) Token() interlock.Token { return c.h.token }

// AdvisoryClaim is a held lock without a token. It protects nothing.
type AdvisoryClaim struct{ claim }

// claim is the common part of both kinds of claims.
type claim struct {
	h      *hold
	shared bool // the caller's context had acquired it
}

// fenced returns c as a claim with a token.
func (c claim) fenced() *Claim {
	if c.shared {
		return &Claim{c}
	}
	return &c.h.claim
}

// Name returns the name that is held.
func (c claim) Name() string { return c.h.gate.name }

// Owner returns the holder's id in the backend. Claims that were handed over inside the process
// have the same owner and different tokens.
func (c claim) Owner() string { return c.h.place.owner }

// Remaining returns how long the claim is still valid; 0 or less means that it has ended.
func (c claim) Remaining() time.Duration { return c.h.remaining() }

// Valid reports whether the claim is valid now, by the clock.
func (c claim) Valid() bool { return c.h.remaining() > 0 }

// Context returns a context that descends from the context of the call that acquired the claim.
// It ends when the claim ends, with the same cause.
func (c claim) Context() context.Context { return c.h.context() }

// Extend sets the end of a claim with Options.MaxHold to d from now, whatever time is left. It
// sends no request, because the lease is renewed independently. MaxHold with Extend is thus a
// hold for a fixed time that only the holder extends. If the claim has ended, the error is
// Definite and wraps the cause. Without MaxHold it is a Bug.
func (c claim) Extend(d time.Duration) error { return c.h.extend(d) }

// Renew asks the backend for another Options.TTL, counted from when the request is sent. It is
// for locks with Options.NoRenewal; otherwise the error is a Bug. Renew retries until ctx or
// the claim ends. If the claim has ended, or the backend reports its loss, which ends it, the
// error is Definite and wraps the cause. After any other error the claim keeps its previous
// end.
func (c claim) Renew(ctx context.Context) error { return c.h.renew(ctx) }

// Release releases the claim and waits for the backend to confirm. Repeated calls return the
// same result. It ignores the cancellation of ctx and retries within its own bound,
// Options.ReleaseTimeout. After an error the claim has ended, but the lock may stay taken until
// it expires. Release returns nil at once if the claim was lost. It also does so if the claim
// is shared with a caller (Options.Reentrant); then the lock stays held.
func (c claim) Release(ctx context.Context) error {
	err := c.leave(ctx)
	c.h.locker.reports.Flush(c.h)
	return err
}

// leave is Release, and leaves the hooks of c to Flush.
func (c claim) leave(ctx context.Context) error {
	if c.shared {
		return nil
	}
	return c.h.release(ctx)
}

// handle is the part of a hold that belongs to the locker.
type handle struct {
	locker   *locker
	claim    Claim
	parent   context.Context // of ctx
	detached bool            // ctx has only the values of parent
	ctx      context.Context // nil until it is needed
	cancel   context.CancelCauseFunc
	due      boottime.Instant // when to call woken; 0 if not
	index    int              // in alarms, while due is not 0
	leaving  lazyContext      // of the release
	renewing chan struct{}    // has one entry while renew is under way; only with Options.NoRenewal
	released sync.WaitGroup   // done when release has its answer, err
	err      error
}

// begin creates the claim of h. l.mu is held.
func (l *locker) begin(h *hold, c caller, after time.Duration) {
	h.locker, h.parent, h.detached = l, c.parent, c.detached
	h.claim = Claim{claim{h: h}}
	h.released.Add(1)
	if l.options.NoRenewal {
		h.renewing = make(chan struct{}, 1)
	}
	l.alarms.set(h, after)
}

// context returns the context of the claim.
func (h *hold) context() context.Context {
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	return h.makeContext()
}

// makeContext is context with l.mu held.
func (h *hold) makeContext() context.Context {
	if h.ctx == nil {
		parent := h.parent
		if h.detached {
			parent = context.WithoutCancel(parent)
		}
		h.ctx, h.cancel = context.WithCancelCause(context.WithValue(parent, h.locker, h))
		if h.ended != nil {
			h.cancel(h.ended)
		}
	}
	return h.ctx
}

// find returns the claim on name whose context ctx descends from, ended or not; nil if there is none.
// The context of a claim has the claim as the value of its locker.
func (l *locker) find(ctx context.Context, name string) *hold {
	for {
		h, _ := ctx.Value(l).(*hold)
		if h == nil || h.gate.name == name {
			return h
		}
		ctx = h.parent
	}
}

// ring wakes the holds that are due.
func (l *locker) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alarms.fired(boottime.Now(), func(h *hold) {
		h.gate.woken(h, h.place.read())
		l.runEffects()
	})
}

// end ends the claim of h. l.mu is held.
func (l *locker) end(h *hold, cause error) {
	l.alarms.remove(h)
	if h.cancel != nil {
		h.cancel(cause)
	}
	var by any
	if cause == interlock.ErrReleased {
		if !l.reportReleases {
			return
		}
		by = h
	}
	report.Add(&l.reports, by, l.options.Hooks.Ended, observe.LockEnded{Name: h.gate.name, Owner: h.place.owner,
		Token: h.token, Held: boottime.Sent().Sub(h.since), Cause: cause})
}

func (l *locker) warn(h *hold) {
	report.Add(&l.reports, nil, l.options.Hooks.HeldLong, observe.LockHeldLong{Name: h.gate.name, Owner: h.place.owner,
		Token: h.token, Held: boottime.Sent().Sub(h.since), Max: h.most})
}

func (h *hold) remaining() (left time.Duration) {
	h.locker.handle(func() { left = h.gate.look(h, h.place.read()) })
	return left
}

func (h *hold) cause() error {
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	return h.ended
}

const opHold = "hold lock until the work was done"

// orEndedEarly adds the end of the claim to err, if it ended before the work.
func (h *hold) orEndedEarly(err error) error {
	return h.locker.driverName.EndedEarly(opHold, h.gate.name, err, h.cause())
}

// release releases h once; further calls wait for the answer to the first. The caller flushes the reports of h
// afterwards, so that a hook that blocks delays no other caller.
func (h *hold) release(ctx context.Context) error {
	l, g := h.locker, h.gate
	l.mu.Lock()
	if h.releasing {
		l.mu.Unlock()
		h.released.Wait()
		return h.err
	}
	defer h.released.Done()
	r := h.place.read()
	next, leave := g.release(h, r)
	l.runEffects()
	l.alarms.remove(h)
	if next != nil {
		report.Add(&l.reports, h, l.options.Hooks.HandedOver, observe.LockHandedOver{Name: g.name, Owner: next.place.owner, Token: next.token})
	}
	l.mu.Unlock()
	if !leave {
		return nil
	}
	// When the lease is over there is nothing to release.
	h.leaving.parent, h.leaving.detached = ctx, true
	h.leaving.deadline = time.Now().Add(min(r.lease, l.options.ReleaseTimeout))
	h.err = l.giveUp(&h.leaving, h, g.name, h.place.owner, nil)
	l.handle(g.gone)
	return h.err
}

// extend sets the end of the claim to d from now.
func (h *hold) extend(d time.Duration) error {
	l, name := h.locker, h.gate.name
	switch {
	case l.options.MaxHold == 0:
		return l.misuse("extend", name, "Options.MaxHold sets no limit to extend")
	case d <= 0:
		return l.misuse("extend", name, "%v is no time to hold it for", d)
	}
	var held bool
	l.handle(func() { held = h.gate.extend(h, d, h.place.read()) })
	if !held {
		return l.driverName.New("extend", name, interlock.Definite, h.ended)
	}
	return nil
}

// renew repeats the acquire request, which begins another lease if the backend still has the grant.
// One is under way at a time, as drivers require.
func (h *hold) renew(ctx context.Context) error {
	const op = "renew"
	l, name := h.locker, h.gate.name
	if !l.options.NoRenewal {
		return l.misuse(op, name, "Options.NoRenewal is not set: the driver renews the claim")
	}
	select {
	case h.renewing <- struct{}{}:
		defer func() { <-h.renewing }()
	case <-ctx.Done():
		return l.driverName.New(op, name, ownCause(context.Cause(ctx)), context.Cause(ctx))
	}
	if h.remaining() <= 0 {
		return l.driverName.New(op, name, interlock.Definite, h.cause())
	}
	bounded, stop := join.Context(ctx, h.context())
	defer stop()
	request := l.requestOf(h.gate, h.place)
	request.NoWait = true
	for failed := 1; ; failed++ {
		grant, err := l.driver.Acquire(bounded, request)
		if err != nil && worthRepeating(err) && retries.Wait(bounded, failed) {
			continue
		}
		return h.renewed(grant, err)
	}
}

// renewed applies the answer to a renewal.
func (h *hold) renewed(grant driver.Grant, err error) error {
	l, p := h.locker, h.place
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.runEffects()
	another := err == nil && grant.Token != p.grant.Token
	switch held := h.gate.renewed(h, another, err, p.read()); {
	case !held:
		return l.driverName.New("renew", h.gate.name, interlock.Definite, h.ended)
	case err != nil:
		return err
	}
	p.grant.Lease = grant.Lease
	h.gate.woken(h, p.read())
	return nil
}
