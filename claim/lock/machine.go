package lock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// machine is the state of one lock object: a gate for each name in use. It is pure: methods are
// events, which change the state and append effects. The caller runs the effects before the next
// event, and passes the time as a [reading]. It is not safe for concurrent use.
type machine struct {
	options Options
	closed  bool // names of expired claims are not released
	gates   map[string]*gate
	effects []effect // of the last event, in order
}

// A gate is the queue of this process's goroutines for one name. It has at most one place in the
// backend, and exists while it is needed.
type gate struct {
	*machine
	name    string
	waiters []*waiter
	first   [1]*waiter // storage of a queue of one
	place   *place     // nil if no place in the backend is needed
	holder  *hold      // the current claim on place's grant, or nil
	leaving bool       // a release is under way: the next place waits for it
	last    string     // the last known holder in another process, for errors
}

// A waiter is one goroutine that wants the lock. It gets one answer, unless it leaves before.
type waiter struct {
	try  bool
	turn hold // once it is granted
	caller
}

// A place is one contender in the backend, from its first request until its release. It is not
// reused.
type place struct {
	noWait    bool
	only      *waiter // the caller of several names; nil if the place serves all waiters
	abandoned bool    // no waiter of it is left
	lost      error   // reported by the driver before the grant was delivered
	passes    int     // hand-overs inside the process so far
	granted   reading // at the begin of its first claim
	failed    int     // requests in a row that failed
	trouble   error   // of the last one; nil once it has its place or its grant
	uncertain bool    // one of them may have had an effect
	queued    bool    // it was in the backend's queue
	contender
}

// A hold is one waiter's turn on the grant of a place.
type hold struct {
	gate      *gate
	place     *place
	token     interlock.Token
	since     boottime.Instant
	most      time.Duration    // the maximum hold time; 0 means no limit
	ended     error            // the cause; nil while it is held
	lapses    boottime.Instant // when the name of an expired claim is released; 0 means never
	releasing bool
	warned    bool // the warning about a long hold was emitted
	handle
}

// A reading is a time and the remaining lease of a grant.
type reading struct {
	now   boottime.Instant
	lease time.Duration
}

// An effect is an action that the locker runs for the machine.
type effect struct {
	do     action
	gate   *gate
	place  *place
	waiter *waiter
	hold   *hold
	err    error
	after  time.Duration
}

type action int

const (
	ask    action = iota // start to request place
	stop                 // end the attempt for place
	giveUp               // release place in the backend, in the background; it may have refused it with err
	answer               // answer waiter with hold, to be woken after a time, or with err
	end                  // end hold with the cause err
	wake                 // call woken for hold after a time
	warn                 // hold is held for long
)

func (g *gate) emit(e effect) {
	e.gate = g
	g.effects = append(g.effects, e)
}

// join adds w to the queue, and requests a place if there is none.
func (m *machine) join(name string, w *waiter) *gate {
	g := m.gates[name]
	if g == nil {
		g = m.open(name)
	}
	if w.try && (g.place != nil || len(g.waiters) > 0) {
		g.emit(effect{do: answer, waiter: w, err: g.heldError()})
		return g
	}
	g.waiters = append(g.waiters, w)
	g.contend()
	return g
}

// reserve opens the gate of a name that is not in use, with w as the first waiter and a place for w
// alone. The caller requests the place.
func (m *machine) reserve(name string, w *waiter) (*gate, *place) {
	g := m.open(name)
	g.place, g.waiters = &place{noWait: true, only: w}, append(g.waiters, w)
	return g, g.place
}

func (m *machine) open(name string) *gate {
	g := &gate{machine: m, name: name}
	g.waiters = g.first[:0]
	m.gates[name] = g
	return g
}

// leave removes w from the queue, unless w has its answer. It abandons a place without waiters.
func (g *gate) leave(w *waiter) (answered bool) {
	i := slices.Index(g.waiters, w)
	if i < 0 {
		return true
	}
	g.waiters = slices.Delete(g.waiters, i, i+1)
	if p := g.place; p != nil && g.holder == nil && (len(g.waiters) == 0 || p.only == w) {
		p.abandoned = true
		g.emit(effect{do: stop, place: p})
	}
	g.tidy()
	return false
}

// heldError returns the answer to a waiter that stops waiting.
func (g *gate) heldError() error {
	e := &interlock.HeldError{Name: g.name, Owner: g.last}
	if g.holder != nil {
		e.Owner = g.holder.place.owner
	}
	return e
}

// contend requests a place in the backend if there are waiters and no place. It deletes a gate that is
// not needed.
func (g *gate) contend() {
	if g.place == nil && !g.leaving && len(g.waiters) > 0 {
		g.place = &place{noWait: g.waiters[0].try}
		g.emit(effect{do: ask, place: g.place})
	}
	g.tidy()
}

func (g *gate) tidy() {
	if g.place == nil && !g.leaving && len(g.waiters) == 0 && g.gates[g.name] == g {
		delete(g.gates, g.name)
	}
}

// queued records that p is in the backend's queue.
func (g *gate) queued(p *place, holder string) {
	g.last = holder
	p.failed, p.trouble, p.queued = 0, nil, true
}

// failure records a failed request of p, and returns the number of failures in a row.
func (p *place) failure(err error) (failed int) {
	p.failed++
	p.trouble = err
	p.uncertain = p.uncertain || interlock.Kind(err) == interlock.Uncertain
	return p.failed
}

// granted gives the grant of p to the first waiter. It releases p if there is no waiter, or if the
// grant is already lost.
func (g *gate) granted(p *place, token interlock.Token, r reading) {
	if p.lost != nil || len(g.waiters) == 0 {
		g.place = nil
		g.emit(effect{do: giveUp, place: p})
		g.contend()
		return
	}
	p.granted, p.failed, p.trouble = r, 0, nil
	g.deliver(p, token, r)
}

// refused answers the waiters of p with err, and requests a place for the others: waiters that joined
// after p was abandoned, and waiters of a p that did not wait, if waiting may help. It releases p if
// it may have left something in the backend.
func (g *gate) refused(p *place, err error) {
	g.place = nil
	patient := errors.Is(err, interlock.ErrHeld) || p.noWait && worthRepeating(err)
	concerned := func(w *waiter) bool {
		return w == p.only || !p.abandoned && !oneByOne(err) && (w.try || !patient)
	}
	for _, w := range g.waiters {
		if concerned(w) {
			g.emit(effect{do: answer, waiter: w, err: err})
		}
	}
	g.waiters = slices.DeleteFunc(g.waiters, concerned)
	nothingLeft := errors.Is(err, interlock.ErrHeld) || errors.Is(err, driver.ErrNotInOneStep)
	if p.uncertain || p.queued {
		err = nil // the refusal does not show that nothing is left
	}
	if p.uncertain || !nothingLeft {
		g.emit(effect{do: giveUp, place: p, err: err})
	}
	g.contend()
}

// deliver makes the first waiter the holder.
func (g *gate) deliver(p *place, token interlock.Token, r reading) *hold {
	w := g.waiters[0]
	g.waiters = slices.Delete(g.waiters, 0, 1)
	h := &w.turn
	h.gate, h.place, h.token, h.since, h.most = g, p, token, r.now, g.options.MaxHold
	g.holder = h
	g.emit(effect{do: answer, waiter: w, hold: h, after: h.untilLook(r)})
	return h
}

// release ends h. The lock passes to next; or leave is true, and the caller releases the place in the
// backend and then calls gone. If h has already ended, neither is the case: its place is released in
// the background.
func (g *gate) release(h *hold, r reading) (next *hold, leave bool) {
	h.releasing = true
	if g.look(h, r); h.ended != nil {
		g.emit(effect{do: giveUp, place: h.place})
		return nil, false
	}
	g.end(h, interlock.ErrReleased)
	if next = g.pass(h, r); next != nil {
		return next, false
	}
	g.place, g.leaving = nil, true
	return nil, true
}

// pass hands the lock over to the next waiter in this process, with the next token. It returns
// nil if the remaining lease is too short. It also does after a number of hand-overs or a time,
// both bounded, so that other processes get their turn.
func (g *gate) pass(h *hold, r reading) (next *hold) {
	p := h.place
	token, ok := h.token, true
	if token.Valid() {
		token, ok = token.Next()
	}
	turnOver := g.options.Turn > 0 && r.now.Sub(p.granted.now) >= g.options.Turn
	if !ok || len(g.waiters) == 0 || turnOver || p.passes >= g.options.Handovers ||
		r.lease-g.options.LockDelay <= cmp.Or(g.options.MinValidity, p.granted.lease/4) {
		return nil
	}
	p.passes++
	return g.deliver(p, token, r)
}

// gone ends a release.
func (g *gate) gone() {
	g.leaving = false
	g.contend()
}

// close answers all waiters. Afterwards the machine requests nothing.
func (m *machine) close(err func(name string) error) {
	m.closed = true
	for _, g := range m.gates {
		for _, w := range g.waiters {
			g.emit(effect{do: answer, waiter: w, err: err(g.name)})
		}
		g.waiters = nil
	}
}

// lost ends the claim on p's grant, or records that the grant is lost before it was delivered.
func (g *gate) lost(p *place, cause error) {
	if h := g.holder; h != nil && h.place == p {
		g.over(h, cause)
		return
	}
	p.lost = cause
}

// look returns the remaining time of h, and ends h if there is none. It is the only judge of expiry: a
// claim that it has ended stays ended, whatever renewals are answered later.
func (g *gate) look(h *hold, r reading) (left time.Duration) {
	if h.ended != nil {
		return 0
	}
	left = h.left(r)
	if left > 0 {
		return left
	}
	var cause error = interlock.ErrExpired
	if allowed, limited := h.allowed(r.now); limited && allowed <= 0 {
		cause = errMaxHold{h.most}
	}
	g.over(h, cause)
	if r.lease > 0 { // the driver still renews it
		h.lapses = r.now.Add(r.lease)
		g.emit(effect{do: wake, hold: h, after: r.lease})
	}
	return 0
}

// left returns the remaining time by the lease and by the maximum hold.
func (h *hold) left(r reading) time.Duration {
	left := r.lease - h.gate.options.LockDelay
	if allowed, limited := h.allowed(r.now); limited {
		return min(left, allowed)
	}
	return left
}

// allowed returns the remaining time by the maximum hold, and whether there is one.
func (h *hold) allowed(now boottime.Instant) (left time.Duration, limited bool) {
	return h.since.Add(h.most).Sub(now), h.most > 0
}

// untilLook returns the time until h ends, or until the warning about a long hold.
func (h *hold) untilLook(r reading) time.Duration {
	left := h.left(r)
	if until, ok := h.untilWarning(r.now); ok && until > 0 {
		return min(left, until)
	}
	return left
}

func (h *hold) untilWarning(now boottime.Instant) (time.Duration, bool) {
	allowed, limited := h.allowed(now)
	return allowed - h.gate.options.MaxHold/4, limited && !h.warned
}

// woken checks whether h has expired or is held for long. If the holder of an expired claim does not
// release it, the name is released when the lease would have ended without renewals.
func (g *gate) woken(h *hold, r reading) {
	switch {
	case h.ended == nil:
		if g.look(h, r) <= 0 {
			return
		}
		if until, ok := h.untilWarning(r.now); ok && until <= 0 {
			h.warned = true
			g.emit(effect{do: warn, hold: h})
		}
		g.emit(effect{do: wake, hold: h, after: h.untilLook(r)})
	case h.lapses == 0 || h.releasing || g.closed:
	case h.lapses.Sub(r.now) > 0:
		g.emit(effect{do: wake, hold: h, after: h.lapses.Sub(r.now)})
	default:
		h.lapses = 0
		g.emit(effect{do: giveUp, place: h.place})
	}
}

// extend sets the end of h to d from now. It returns false if h has ended.
func (g *gate) extend(h *hold, d time.Duration, r reading) bool {
	if g.look(h, r) <= 0 {
		return false
	}
	h.most, h.warned = r.now.Add(d).Sub(h.since), false
	g.emit(effect{do: wake, hold: h, after: h.untilLook(r)})
	return true
}

// renewed applies the answer to a renewal of h, with the reading before it. It reports whether h is
// held. It releases a grant to a claim that was released meanwhile, and a grant other than the
// claim's.
func (g *gate) renewed(h *hold, another bool, err error, r reading) bool {
	if g.look(h, r) > 0 && (another || errors.Is(err, interlock.ErrHeld)) {
		g.over(h, interlock.ErrLost)
	}
	if h.ended != nil && (another || h.releasing) && !g.closed {
		g.emit(effect{do: giveUp, place: h.place})
	}
	return h.ended == nil
}

// over ends a claim that its holder did not release. Its place is kept until the holder releases or
// the lease ends, because the work may still run.
func (g *gate) over(h *hold, cause error) {
	g.end(h, cause)
	g.place = nil
	g.contend()
}

func (g *gate) end(h *hold, cause error) {
	h.ended = cause
	g.holder = nil
	g.emit(effect{do: end, hold: h, err: cause})
}

// errMaxHold is the cause of a claim that reached Options.MaxHold.
type errMaxHold struct{ after time.Duration }

func (e errMaxHold) Error() string {
	return fmt.Sprintf("claim expired: it was held for %v, the maximum (MaxHold)", e.after)
}

func (e errMaxHold) Is(target error) bool { return target == interlock.ErrExpired }
