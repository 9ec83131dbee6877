package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

// ownLease is what the driver promises of claims with the lease that o asks for. It
// fails if they cannot have that.
func (o *Options) ownLease(g interlock.Guarantees) (interlock.Guarantees, error) {
	if o == nil || o.TTL == 0 && o.RenewEvery == 0 && !o.NoRenewal {
		return g, nil
	}
	ttl := cmp.Or(o.TTL, g.TTL)
	unmet := func(format string, args ...any) (interlock.Guarantees, error) {
		return g, &interlock.UnmetError{Driver: g.Driver, Unmet: []string{fmt.Sprintf(format, args...)}}
	}
	switch {
	case g.MaxTTL == 0:
		return unmet("TTL, RenewEvery and NoRenewal need claims with a lease of their own, these share that of the driver (%v): open a driver with another TTL", g.TTL)
	case ttl < g.MinTTL || ttl > g.MaxTTL:
		return unmet("a TTL of %v is required, %v to %v are possible", ttl, g.MinTTL, g.MaxTTL)
	case o.RenewEvery < 0 || o.RenewEvery > ttl/2 || o.RenewEvery > 0 && o.NoRenewal:
		return g, &interlock.Error{Op: "make lock", Kind: interlock.Bug,
			Err: fmt.Errorf("RenewEvery is %v: at most half of the TTL (%v) is possible, and 0 with NoRenewal", o.RenewEvery, ttl)}
	}
	if ttl > g.TTL || o.NoRenewal {
		g.Blind = max(g.Blind, ttl)
	}
	g.TTL = ttl
	return g, nil
}

// requestOf is what is asked of the backend for p.
func (l *locker) requestOf(g *gate, p *place) driver.Request {
	r := driver.Request{Name: g.name, Owner: p.owner, NoWait: p.noWait, Events: l.events(g, p),
		TTL: l.options.TTL, Renew: l.options.RenewEvery}
	if l.options.NoRenewal {
		r.Renew = -1
	}
	return r
}

// renew repeats the request that acquired, which begins another lease if the backend
// still has the grant. One is under way at a time, as drivers demand.
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
		return l.beside(op, name, ownCause(context.Cause(ctx)), context.Cause(ctx))
	}
	if h.remaining() <= 0 {
		return l.beside(op, name, interlock.Definite, cmp.Or(h.cause(), error(interlock.ErrExpired)))
	}
	bounded, stop := join.Context(ctx, h.ctx)
	defer stop()
	request := l.requestOf(h.gate, h.place)
	request.NoWait = true
	for failed := 1; ; failed++ {
		grant, err := l.backend.acquire(bounded, request)
		if err != nil && worthRepeating(err) && l.pause(bounded, retries, failed) {
			continue
		}
		return h.renewed(grant, err)
	}
}

// renewed takes the answer to a renewal. What may have been granted to a claim that
// was released meanwhile, or by another grant than the claim's, is given up.
func (h *hold) renewed(grant driver.Grant, err error) error {
	l, p := h.locker, h.place
	l.mu.Lock()
	defer l.mu.Unlock()
	another := err == nil && grant.Token != p.grant.Token
	switch {
	case h.ended != nil:
	case h.left() <= 0:
		l.over(h, h.expiry())
	case another || errors.Is(err, interlock.ErrHeld):
		l.over(h, interlock.ErrLost)
	case err != nil:
		return err
	default:
		p.grant.Lease = l.believed(grant.Lease)
		h.timer.Reset(h.untilLook(h.left()))
		return nil
	}
	if (another || h.releasing) && l.idle == nil {
		l.begin()
		go l.giveUpInBackground(h.gate.name, p.owner)
	}
	return l.beside("renew", h.gate.name, interlock.Definite, h.ended)
}
