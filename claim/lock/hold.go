package lock

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/observe"
)

// hold is a claim that is or was out: one goroutine's turn on a grant.
type hold struct {
	locker *locker
	gate   *gate
	place  *place
	token  interlock.Token
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // looks whether it has ended; afterwards, for when its lease lapses
	since  boottime.Instant

	// Guarded by locker.mu.
	most      time.Duration // that it may be held for; 0 is no limit
	ended     error         // why it ended; nil while it is held
	releasing bool
	warned    bool // that it is held for long

	renewing chan struct{} // has one entry while renew is under way

	released chan struct{} // closed when release has its answer, err
	err      error
}

// heldKey finds a hold in its own context and those that descend from it.
type heldKey struct {
	locker *locker
	name   string
}

func (l *locker) newHold(parent context.Context, g *gate, p *place, token interlock.Token) *hold {
	h := &hold{
		locker: l, gate: g, place: p, token: token,
		most: l.options.MaxHold, since: boottime.Now(), released: make(chan struct{}),
		renewing: make(chan struct{}, 1),
	}
	h.ctx, h.cancel = context.WithCancelCause(context.WithValue(parent, heldKey{l, g.name}, h))
	h.timer = time.AfterFunc(h.untilLook(h.left()), h.check)
	return h
}

// check runs when the lease would have ended without the renewals since, and
// when a limit of its length comes near.
func (h *hold) check() {
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	if left := h.left(); left > 0 && h.ended == nil {
		h.warn()
		h.timer.Reset(h.untilLook(left))
		return
	}
	h.locker.over(h, h.expiry())
}

// end ends the claim with a cause, once.
func (l *locker) end(h *hold, cause error) {
	if h.ended != nil {
		return
	}
	h.ended = cause
	h.timer.Stop()
	h.cancel(cause)
	h.gate.holder = nil
	if f := l.options.Hooks.Ended; f != nil {
		f(observe.LockEnded{Name: h.gate.name, Owner: h.place.owner, Token: h.token,
			Held: boottime.Now().Sub(h.since), Cause: cause})
	}
}

// over ends a claim that its holder did not give up. Its place is left to lapse
// until the holder releases: the work may not have stopped yet.
func (l *locker) over(h *hold, cause error) {
	if h.ended != nil {
		return
	}
	l.end(h, cause)
	h.lapse(cause)
	h.gate.place = nil
	l.contend(h.gate)
}

func (h *hold) remaining() time.Duration {
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	if h.ended != nil {
		return 0
	}
	return h.left()
}

func (h *hold) cause() error {
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	return h.ended
}

// orEndedEarly adds to err, of work whose claim has ended, that it did not last.
func (h *hold) orEndedEarly(err error) error {
	cause := h.cause()
	if cause == interlock.ErrReleased {
		return err
	}
	return errors.Join(err, &interlock.Error{Op: "hold lock until the work was done", Driver: h.locker.name,
		Name: h.gate.name, Kind: interlock.Uncertain, Err: cause})
}

func (h *hold) release(ctx context.Context) error {
	if first := h.beginRelease(ctx); !first {
		<-h.released
	}
	return h.err
}

// beginRelease decides, once, what a release has to do, and does it.
func (h *hold) beginRelease(ctx context.Context) (first bool) {
	l, g := h.locker, h.gate
	l.mu.Lock()
	if h.releasing {
		l.mu.Unlock()
		return false
	}
	defer close(h.released)
	h.releasing = true
	if h.ended == nil && h.left() <= 0 {
		l.over(h, h.expiry())
	}
	if h.ended != nil {
		h.timer.Stop()
		l.begin()
		l.mu.Unlock()
		go l.giveUpInBackground(g.name, h.place.owner)
		return true
	}
	l.end(h, interlock.ErrReleased)
	if l.pass(g, h) {
		next := g.holder
		l.mu.Unlock()
		if f := l.options.Hooks.HandedOver; f != nil {
			f(observe.LockHandedOver{Name: g.name, Owner: next.place.owner, Token: next.token})
		}
		return true
	}
	g.place, g.leaving = nil, true
	lapses := h.place.lapses()
	l.mu.Unlock()

	// When the lease is over there is nothing left to give up.
	h.err = l.giveUp(ctx, min(lapses, l.options.ReleaseTimeout), g.name, h.place.owner)

	l.mu.Lock()
	defer l.mu.Unlock()
	g.leaving = false
	l.contend(g)
	return true
}
