package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// retries bounds the pauses after failed requests.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// An attempt requests one place of the backend, or the places of several names in one step. It
// belongs to the gates, not to the caller that started it. That caller's goroutine runs it; if the
// caller leaves before the answer, another goroutine continues.
type attempt struct {
	*locker
	members []member
	single  [1]member // members, if the attempt is for one name
	try     bool      // the caller does not wait
	ctx     lazyContext
}

type member struct {
	gate    *gate
	place   *place
	request driver.Request
	granted reading // when the grant arrived
}

var errNobodyWaits = errors.New("no caller waits for the lock any more")

// ask starts an attempt for one place, in the goroutine of the joining caller if there is one. l.mu
// is held.
func (l *locker) ask(g *gate, p *place) {
	a := &p.own
	a.locker, a.try, a.single[0] = l, p.noWait, member{gate: g, place: p}
	a.members = a.single[:]
	if l.joining != nil {
		a.prepare(l.joining)
		l.lent = a
		return
	}
	a.prepare(l.ctx)
	go a.serve()
}

// prepare prepares the attempt, which ends with ctx. l.mu is held.
func (a *attempt) prepare(ctx context.Context) {
	a.ctx.parent = ctx
	for i, m := range a.members {
		m.place.owner, m.place.attempt = a.newOwner(), a
		a.members[i].request = a.requestOf(m.gate, m.place)
	}
	a.running++
}

// serve runs the attempt in a goroutine of its own.
func (a *attempt) serve() {
	err := a.run(&a.ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finish(err)
}

// serveLent runs the attempt in the goroutine of w, which waits until ctx ends. It reports whether
// the call ends, and its error. If ctx ends before the answer, w leaves. For the other waiters, a new
// goroutine repeats the request with the same owner, which converges.
func (a *attempt) serveLent(w *waiter, ctx, wait context.Context) (done bool, err error) {
	answer := a.run(&a.ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.members[0]
	if answer != nil && ctx.Err() != nil && !m.gate.leave(w) {
		err = a.waitedTooLong(wait, m.gate, w.began)
		m.place.uncertain = m.place.uncertain || interlock.Kind(answer) == interlock.Uncertain
		if m.place.abandoned {
			a.finish(answer)
		} else {
			a.continueAlone()
		}
		return true, err
	}
	a.finish(answer)
	return w.answer, w.err
}

// continueAlone continues the attempt in a goroutine of its own. l.mu is held.
func (a *attempt) continueAlone() {
	a.ctx.end(nil)
	rest := &attempt{locker: a.locker, members: a.members, try: a.try}
	rest.ctx.parent = a.locker.ctx
	p := rest.members[0].place
	p.attempt, p.lost = rest, nil
	go rest.serve()
}

// finish applies the answer to the attempt. l.mu is held.
func (a *attempt) finish(err error) {
	a.settle(err)
	a.runEffects()
	a.ctx.end(nil)
	a.locker.finish()
}

// run repeats the request until the backend grants or refuses, too many requests in a row have
// failed, or no caller waits. Repeating with the same owner converges, whatever the outcome of
// requests without an answer was.
func (a *attempt) run(ctx context.Context) error {
	for {
		err := a.request(ctx)
		if err == nil || !worthRepeating(err) || ctx.Err() != nil {
			return err
		}
		if failed := a.failure(err); a.tooOften(failed, a.try) || !retries.Wait(ctx, failed) {
			return err
		}
		a.mu.Lock()
		for _, m := range a.members {
			m.place.lost = nil // that was an earlier grant
		}
		a.mu.Unlock()
	}
}

// request sends one request. A grant whose lease has ended before it arrived is an error.
func (a *attempt) request(ctx context.Context) (err error) {
	if len(a.members) > 1 {
		err = a.requestAll(ctx)
	} else {
		a.members[0].place.grant, err = a.driver.Acquire(ctx, a.members[0].request)
	}
	if err != nil {
		return err
	}
	for i, m := range a.members {
		r := m.place.read()
		if r.lease <= a.options.LockDelay {
			return a.driverName.New("acquire", m.gate.name, interlock.Uncertain, fmt.Errorf("the answer took longer than the lease: %w", interlock.ErrExpired))
		}
		a.members[i].granted = r
	}
	return nil
}

func (a *attempt) requestAll(ctx context.Context) error {
	requests := make([]driver.Request, len(a.members))
	for i, m := range a.members {
		requests[i] = m.request
	}
	grants, err := a.batch.AcquireAll(ctx, requests)
	for i, g := range grants {
		a.members[i].place.grant = g
	}
	return err
}

// failure records a failed request, and returns the number of failures in a row.
func (a *attempt) failure(err error) (failed int) {
	for _, m := range a.members {
		a.mu.Lock()
		failed = m.place.failure(err)
		a.mu.Unlock()
		report.Add(&a.reports, nil, a.options.Hooks.RequestFailed,
			observe.LockRequestFailed{Name: m.gate.name, Owner: m.place.owner, Failed: failed, Err: err})
	}
	return failed
}

// settle applies the answer to the gates. If one of several claims is already lost, none is granted.
// The waiters of several names are answered together; the context of each claim descends from that
// of the one before. l.mu is held.
func (a *attempt) settle(err error) {
	lost := err == nil && len(a.members) > 1 && slices.ContainsFunc(a.members, func(m member) bool { return m.place.lost != nil })
	if lost {
		err = a.driverName.New("acquire all", "", interlock.Retryable, errLostOnItsWay)
	}
	var parent *hold
	for _, m := range a.members {
		if err != nil {
			m.place.uncertain = m.place.uncertain || lost
			m.gate.refused(m.place, err)
			continue
		}
		if parent != nil && slices.Contains(m.gate.waiters, m.place.only) {
			m.place.only.parent = parent.makeContext()
		}
		m.gate.granted(m.place, m.place.grant.Token, m.granted)
		a.runEffects()
		parent = m.gate.holder
	}
}

// tooOften reports whether the number of failures in a row ends the attempt.
func (l *locker) tooOften(failed int, try bool) bool {
	most := l.options.Attempts
	if most == 0 && try {
		most = DefaultAttempts
	}
	return most > 0 && failed >= most
}

func worthRepeating(err error) bool {
	kind := interlock.Kind(err)
	return (kind == interlock.Retryable || kind == interlock.Uncertain) && !errors.Is(err, interlock.ErrHeld)
}

// requestOf returns the request for p.
func (l *locker) requestOf(g *gate, p *place) driver.Request {
	r := driver.Request{Name: g.name, Owner: p.owner, NoWait: p.noWait, Events: l.events(g, p),
		TTL: l.options.TTL, Renew: l.options.RenewEvery, MinLease: l.options.LockDelay}
	if l.options.NoRenewal {
		r.Renew = -1
	}
	return r
}

func (l *locker) events(g *gate, p *place) driver.Events {
	e := driver.Events{
		Waiting: func(at driver.Place) {
			l.handle(func() { g.queued(p, at.Holder) })
			report.Add(&l.reports, nil, l.options.Hooks.Waiting,
				observe.LockWaiting{Name: g.name, Owner: p.owner, Ahead: at.Ahead, Holder: at.Holder})
		},
		Lost: func(cause error) {
			l.handle(func() { g.lost(p, cause) })
		},
	}
	if f := l.options.Hooks.Renewed; f != nil {
		e.Renewed = func(took time.Duration, err error) {
			report.Add(&l.reports, nil, f, observe.LockRenewed{Name: g.name, Owner: p.owner, Took: took, Err: err})
		}
	}
	return e
}
