package lock

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/observe"
)

// checkLockDelay refuses a delay that the driver's leases have no room for.
func (o Options) checkLockDelay(g interlock.Guarantees) error {
	unmet := func(format string, args ...any) error {
		return &interlock.UnmetError{Driver: g.Driver, Unmet: []string{fmt.Sprintf(format, args...)}}
	}
	most := g.TTL/2 - g.TTL/100
	switch {
	case o.LockDelay == 0:
		return nil
	case g.TTL <= 0 || g.Liveness == interlock.Connection || g.Liveness == interlock.LivenessUnstated:
		return unmet("LockDelay needs claims that live by time, these live by %s", g.Liveness)
	case o.LockDelay > most:
		return unmet("LockDelay is %v, at most %v leave room to renew a lease of %v", o.LockDelay, most, g.TTL)
	}
	return nil
}

// believed is how long we believe in a lease.
func (l *locker) believed(lease driver.Lease) driver.Lease {
	if l.options.LockDelay == 0 {
		return lease
	}
	return &early{Lease: lease, by: l.options.LockDelay}
}

// early is a lease that ends before its time. It is a driver.Lease: once it was
// seen to end, renewals that come late do not revive it.
type early struct {
	driver.Lease
	by    time.Duration
	ended atomic.Bool
}

func (e *early) Remaining() time.Duration {
	left := e.Lease.Remaining() - e.by
	if left <= 0 {
		e.ended.Store(true)
	}
	if e.ended.Load() {
		return min(left, 0)
	}
	return left
}

// lapses is how long until the backend can give the name away.
func (p *place) lapses() time.Duration {
	if e, ok := p.grant.Lease.(*early); ok {
		return e.Lease.Remaining()
	}
	return p.grant.Lease.Remaining()
}

// errMaxHold is the cause of a claim that reached Options.MaxHold.
type errMaxHold struct{ after time.Duration }

func (e errMaxHold) Error() string {
	return fmt.Sprintf("claim expired: it was held for %v, the longest that is allowed", e.after)
}

func (e errMaxHold) Is(target error) bool { return target == interlock.ErrExpired }

// allowed is how much longer the claim may be held, and whether that is limited.
func (h *hold) allowed() (left time.Duration, limited bool) {
	return h.since.Add(h.most).Sub(boottime.Now()), h.most > 0
}

// left is how long the claim is still good for, if it has not ended.
func (h *hold) left() time.Duration {
	lease := h.place.grant.Lease.Remaining()
	if allowed, limited := h.allowed(); limited {
		return min(lease, allowed)
	}
	return lease
}

// extend lets the claim be held for so long from now.
func (h *hold) extend(d time.Duration) error {
	l, name := h.locker, h.gate.name
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.ended == nil && h.left() <= 0 {
		l.over(h, h.expiry())
	}
	switch {
	case h.most == 0:
		return l.misuse("extend", name, "Options.MaxHold sets no limit to extend")
	case d <= 0:
		return l.misuse("extend", name, "%v is no time to hold it for", d)
	case h.ended != nil:
		return l.beside("extend", name, interlock.Definite, h.ended)
	}
	h.most, h.warned = boottime.Now().Add(d).Sub(h.since), false
	h.timer.Reset(h.untilLook(h.left()))
	return nil
}

// expiry says why nothing is left.
func (h *hold) expiry() error {
	if allowed, limited := h.allowed(); limited && allowed <= 0 {
		return errMaxHold{h.most}
	}
	return interlock.ErrExpired
}

// untilLook is when to look at the claim again.
func (h *hold) untilLook(left time.Duration) time.Duration {
	if warn, ok := h.untilWarning(); ok && warn > 0 {
		return min(left, warn)
	}
	return left
}

// untilWarning is how long until a quarter of what is allowed is left.
func (h *hold) untilWarning() (time.Duration, bool) {
	allowed, limited := h.allowed()
	return allowed - h.locker.options.MaxHold/4, limited && !h.warned
}

// warn tells, once, that the claim is held for long.
func (h *hold) warn() {
	until, ok := h.untilWarning()
	if !ok || until > 0 {
		return
	}
	h.warned = true
	if f := h.locker.options.Hooks.HeldLong; f != nil {
		f(observe.LockHeldLong{Name: h.gate.name, Owner: h.place.owner, Token: h.token,
			Held: boottime.Now().Sub(h.since), Max: h.most})
	}
}

// lapse sees to it that the backend frees the name of an expired claim even if
// nobody ever releases it: no later than it would have without renewals. The
// driver goes on renewing, because it does not know that we ended the claim.
func (h *hold) lapse(cause error) {
	if left := h.place.lapses(); left > 0 && errors.Is(cause, interlock.ErrExpired) {
		h.timer = time.AfterFunc(left, h.lapsed)
	}
}

func (h *hold) lapsed() {
	l := h.locker
	l.mu.Lock()
	if h.releasing || l.idle != nil { // released by now, or left to lapse by itself
		l.mu.Unlock()
		return
	}
	l.begin()
	l.mu.Unlock()
	l.giveUpInBackground(h.gate.name, h.place.owner)
}
