package lock

import (
	"context"
	"errors"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A gate is where the goroutines of this process queue for one name. It has at
// most one place in the backend. Everything here is decided under locker.mu and
// does no I/O; DESIGN.md has the states.
type gate struct {
	name    string
	waiters []*waiter
	place   *place // nil: nothing of ours is wanted in the backend
	holder  *hold  // nil unless a claim on place's grant is out
	leaving bool   // a release is under way: the next place waits for it
	last    string // the last known holder elsewhere, for errors
}

// A place is one contender in the backend, from its first request until it is
// given up. It is not reused.
type place struct {
	owner     string
	noWait    bool
	cancel    context.CancelCauseFunc // ends the attempt to get the grant
	abandoned bool                    // nobody waits for the grant any more
	grant     driver.Grant            // zero until granted
	lost      error                   // told by the driver before the grant was delivered
	passes    int                     // hand-overs inside the process so far

	failed    int   // requests in a row that failed
	trouble   error // why the last one failed; nil once it has its place
	uncertain bool  // one of them may have been carried out
}

// A waiter is one goroutine that wants the lock.
type waiter struct {
	parent context.Context // what the claim's context descends from
	try    bool
	result chan outcome // capacity 1: told exactly once, unless it leaves before
}

type outcome struct {
	hold *hold
	err  error
}

var errNobodyWaits = errors.New("nobody waits for the lock any more")

// join puts w in the queue and makes sure that somebody asks the backend.
func (l *locker) join(name string, w *waiter) *gate {
	g := l.gates[name]
	if g == nil {
		g = &gate{name: name}
		l.gates[name] = g
	}
	if w.try && (g.place != nil || len(g.waiters) > 0) {
		w.result <- outcome{err: &interlock.HeldError{Name: name, Owner: g.lastHolder()}}
		return g
	}
	g.waiters = append(g.waiters, w)
	l.contend(g)
	return g
}

// leave takes w out of the queue, unless it has been told its outcome.
func (l *locker) leave(g *gate, w *waiter) (told bool) {
	i := slices.Index(g.waiters, w)
	if i < 0 {
		return true
	}
	g.waiters = slices.Delete(g.waiters, i, i+1)
	if len(g.waiters) == 0 && g.place != nil && g.holder == nil {
		g.place.abandoned = true
		g.place.cancel(errNobodyWaits)
	}
	l.tidy(g)
	return false
}

// lastHolder is who holds the name, as far as it is known here.
func (g *gate) lastHolder() string {
	if g.holder != nil {
		return g.holder.place.owner
	}
	return g.last
}

// contend takes a place in the backend if one is wanted and there is none, and
// forgets the gate if nobody needs it.
func (l *locker) contend(g *gate) {
	if g.place == nil && !g.leaving && len(g.waiters) > 0 {
		g.place = &place{
			owner:  l.newOwner(),
			noWait: g.waiters[0].try,
		}
		l.start(g, g.place)
	}
	l.tidy(g)
}

func (l *locker) tidy(g *gate) {
	if g.place == nil && !g.leaving && len(g.waiters) == 0 && l.gates[g.name] == g {
		delete(l.gates, g.name)
	}
}

// granted gives the grant of p to the first waiter. It reports false if nobody
// takes it, or it was lost before it came, and p must be given up.
func (l *locker) granted(g *gate, p *place, grant driver.Grant) bool {
	p.grant = grant
	if p.lost != nil || len(g.waiters) == 0 {
		g.place = nil
		l.contend(g)
		return false
	}
	l.deliver(g, p, grant.Token)
	return true
}

// refused tells those who asked for p why there is no grant, and asks again for
// those whom the answer does not concern: the ones who came after p was
// abandoned, and the ones who wait while p only tried, if waiting may help.
func (l *locker) refused(g *gate, p *place, err error) {
	g.place = nil
	patient := errors.Is(err, interlock.ErrHeld) || p.noWait && worthRepeating(err)
	concerned := func(w *waiter) bool {
		return !p.abandoned && (w.try || !patient)
	}
	for _, w := range g.waiters {
		if concerned(w) {
			w.result <- outcome{err: err}
		}
	}
	g.waiters = slices.DeleteFunc(g.waiters, concerned)
	l.contend(g)
}

// deliver makes the first waiter the holder.
func (l *locker) deliver(g *gate, p *place, token interlock.Token) {
	w := g.waiters[0]
	g.waiters = slices.Delete(g.waiters, 0, 1)
	g.holder = l.newHold(w.parent, g, p, token)
	w.result <- outcome{hold: g.holder}
}

// pass hands the lock on to the next waiter in this process, with the next
// token, while the bounds allow it: other processes have their turn after a
// bounded number of hand-overs, and what is handed on is still good for a while.
func (l *locker) pass(g *gate, h *hold) bool {
	p := h.place
	token, ok := h.token, true
	if token.Valid() {
		token, ok = token.Next()
	}
	if !ok || len(g.waiters) == 0 || p.passes >= l.options.Handovers ||
		p.grant.Lease.Remaining() <= l.options.MinValidity {
		return false
	}
	p.passes++
	l.deliver(g, p, token)
	return true
}
