package elect

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/process"
	"github.com/interlock-dev/interlock/internal/report"
)

// Run blocks until this candidate is elected, runs lead for one term, and releases the
// leadership. It releases after lead has returned or panicked, even if ctx has ended. To lead
// again, call Run again.
//
// The context of lead ends with ctx, or with the term; its cause is then interlock.ErrExpired,
// ErrLost or ErrSessionEnded. Run returns lead's error, joined with the cause if the term ended
// before lead returned. In that case only a guard knows how much of the work took effect. If
// the leadership is lost before lead was called, Run campaigns again. If the backend serves
// candidates in no order, a candidate that has just led waits up to half a second before it
// campaigns.
//
// If lead was not called, the error is that of ctx, or interlock.ErrReentered (ctx already
// holds the name). It may also be an error of the backend that a retry cannot fix. While the
// backend is unreachable, Run keeps campaigning.
func (e *Election) Run(ctx context.Context, name string, lead func(ctx context.Context, term *Term) error) error {
	if err := e.check("campaign", name); err != nil {
		return err
	}
	began := boottime.Now()
	if !e.letOthers(ctx, name) {
		return e.driverName.New("campaign", name, interlock.Definite, context.Cause(ctx))
	}
	for n := 0; ; n++ {
		if n > 0 && !e.pause(ctx, e.patience(n), n) {
			return e.driverName.New("campaign", name, interlock.Definite, context.Cause(ctx))
		}
		c, err := e.locks.Acquire(ctx, name)
		if err != nil {
			return err
		}
		called, err := e.serve(ctx, c, began, lead)
		if called || ctx.Err() != nil || !again(err, n) {
			return err
		}
	}
}

// patience returns the delay between a failed campaign and the next one. If the backend serves
// contenders in order, a candidate may ask at once. If not, the nominee needs time to come
// first.
func (e *Election) patience(n int) backoff.Policy {
	if e.fifo && n == 1 {
		return backoff.Policy{}
	}
	return backoff.Policy{First: min(100*time.Millisecond, e.options.StandBack/8), Max: e.options.StandBack / 4}
}

// courtesy is the time after its last term during which a candidate lets others come first.
const courtesy = 500 * time.Millisecond

// letOthers waits a little if this candidate has just led and the backend serves candidates in
// no order. Without it this candidate would always ask first, while the others wait for a hint
// that the leadership is free.
func (e *Election) letOthers(ctx context.Context, name string) bool {
	e.mu.Lock()
	ended, led := e.led[name]
	delete(e.led, name)
	e.mu.Unlock()
	most := min(courtesy, e.options.StandBack/4)
	if !led || boottime.Now().Sub(ended) >= most {
		return true
	}
	return e.pause(ctx, backoff.Policy{First: most, Max: most}, 1)
}

// pause waits before the next campaign, until ctx or the election ends. It reports false if ctx has
// ended; after Close the lock refuses the campaign.
func (e *Election) pause(ctx context.Context, p backoff.Policy, n int) bool {
	waiting, stop := join.Context(ctx, e.ctx)
	defer stop()
	p.Wait(waiting, n)
	return ctx.Err() == nil
}

// noteEnd records the end of our term, for as long as letOthers needs it.
func (e *Election) noteEnd(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := boottime.Now()
	maps.DeleteFunc(e.led, func(_ string, ended boottime.Instant) bool { return now.Sub(ended) >= courtesy })
	e.led[name] = now
}

var errStoodBack = errors.New("another candidate is nominated")

// again reports whether to campaign again after a leadership that ended before lead was called.
// A record with a newer token than a valid grant may, but need not, be that of a leader unknown
// here.
func again(err error, n int) bool {
	for _, cause := range []error{interlock.ErrExpired, interlock.ErrLost, interlock.ErrSessionEnded} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return worthRepeating(err) || errors.Is(err, interlock.ErrStaleToken) && n < attempts
}

// serve writes the term's record under a claim, leads, and releases the claim.
func (e *Election) serve(ctx context.Context, c *lock.Claim, began boottime.Instant,
	lead func(context.Context, *Term) error) (called bool, err error) {
	t := &Term{claim: c, election: e, turn: make(chan struct{}, 1), token: c.Token()}
	elected := boottime.Now()
	defer func() {
		_ = c.Release(ctx) // Hooks.Lock.ReleaseFailed reports errors
		cause := context.Cause(c.Context())
		err = e.driverName.EndedEarly("lead until the work was done", c.Name(), err, cause)
		if called && !e.fifo {
			e.noteEnd(c.Name())
		}
		if f := e.options.Hooks.Yielded; f != nil && t.yieldedTo != "" {
			f(Yielded{Name: c.Name(), Nominee: t.yieldedTo})
		}
		if f := e.options.Hooks.Ended; f != nil && called {
			f(Ended{Name: c.Name(), Token: c.Token(), Held: boottime.Now().Sub(elected), Cause: cause})
		}
	}()
	leading, cancel := context.WithCancelCause(c.Context())
	defer cancel(interlock.ErrReleased)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	entering, stop := join.Context(leading, e.ctx)
	err = t.takeOffice(entering)
	stop()
	if err != nil {
		return false, err
	}
	called, elected = true, boottime.Now()
	report.Now(e.options.Hooks.Elected, Elected{Name: c.Name(), Token: c.Token(), Wait: elected.Sub(began)})
	return true, lead(leading, t)
}

// defersToOthers reports whether an elected candidate yields to nominee. It does if nominee is
// another candidate, not known to have left, whose nomination is at most StandBack old by this
// process's clock.
func (e *Election) defersToOthers(ctx context.Context, name, nominee string, by interlock.Token) bool {
	if nominee == "" || nominee == e.options.Identity {
		return false
	}
	if boottime.Now().Sub(e.firstSeen(name, by)) >= e.options.StandBack {
		return false
	}
	if waits, err := e.waits(ctx, name, nominee); err == nil && !waits {
		return false
	}
	return true
}

// firstSeen returns when this process first saw the nomination of a term. Each candidate
// measures by itself, so clocks are never compared.
func (e *Election) firstSeen(name string, by interlock.Token) boottime.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.nominations[name]
	if n.token.Counter() != by.Counter() {
		n = nomination{token: by, seen: boottime.Now()}
		e.nominations[name] = n
	}
	return n.seen
}

// waits reports whether a candidate is in the queue. If the driver cannot show the queue, waits
// returns true: a backend that serves waiters in no order need not know them.
func (e *Election) waits(ctx context.Context, name, identity string) (bool, error) {
	inspector, ok := e.driver.(driver.Inspector)
	if !ok || !e.fifo {
		return true, nil
	}
	state, err := inspector.Lock(ctx, name)
	if err != nil {
		return false, err
	}
	for _, w := range state.Waiters {
		if process.IdentityOf(w.Owner) == identity {
			return true, nil
		}
	}
	return false, nil
}
