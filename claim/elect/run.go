package elect

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// Run waits until this candidate is elected, runs lead for one term, and gives
// the leadership up when lead has returned or panicked, even if ctx has ended.
// To lead again, call it again.
//
// The context that lead gets ends with ctx, or when the term does: its cause is
// then interlock.ErrExpired, ErrLost or ErrSessionEnded. Run returns what lead
// returned, and beside it, if the term ended before that, why: only a guard
// knows then how much of the work counts. Where the backend serves candidates in no
// order, one that has just led waits up to half a second first. A leadership that was lost before lead
// was called is campaigned for again.
//
// If lead was not called the error is that of ctx, interlock.ErrReentered (ctx
// holds the name already), or one of the backend's that trying again would not
// help: while the backend cannot be reached it goes on campaigning.
func (e *Election) Run(ctx context.Context, name string, lead func(ctx context.Context, term *Term) error) error {
	if err := e.check("campaign", name); err != nil {
		return err
	}
	began := boottime.Now()
	if !e.letOthers(ctx, name) {
		return e.fail("campaign", name, interlock.Definite, context.Cause(ctx))
	}
	for n := 0; ; n++ {
		if n > 0 && !e.patience(n).Wait(ctx, n) {
			return e.fail("campaign", name, interlock.Definite, context.Cause(ctx))
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

// patience is between a leadership that did not come about and the next
// campaign. Where contenders are served in the order of their requests, one may ask at once; where
// not, the nominee needs time to come first.
func (e *Election) patience(n int) backoff.Policy {
	if e.fifo && n == 1 {
		return backoff.Policy{}
	}
	return backoff.Policy{First: min(100*time.Millisecond, e.options.StandBack/8), Max: e.options.StandBack / 4}
}

// courtesy is within what time of its last term a candidate lets others come first.
const courtesy = 500 * time.Millisecond

// letOthers waits a little if this candidate has just led, and the backend serves
// candidates in no order: it would be the first to ask, again and again, while the
// others wait for a hint that the leadership is free.
func (e *Election) letOthers(ctx context.Context, name string) bool {
	e.mu.Lock()
	ended, led := e.led[name]
	delete(e.led, name)
	e.mu.Unlock()
	most := min(courtesy, e.options.StandBack/4)
	if !led || e.fifo || boottime.Now().Sub(ended) >= most {
		return true
	}
	return backoff.Policy{First: most, Max: most}.Wait(ctx, 1)
}

var errStoodBack = errors.New("another candidate is nominated")

// again reports whether a leadership that was granted, and given up or lost
// before anybody led, is worth another campaign. A record that is newer than a
// grant that holds may be that of a leader we have not heard of yet; not always.
func again(err error, n int) bool {
	for _, cause := range []error{interlock.ErrExpired, interlock.ErrLost, interlock.ErrSessionEnded} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return worthRepeating(err) || errors.Is(err, interlock.ErrStaleToken) && n < attempts
}

// serve takes office under a claim, leads, and gives the claim up.
func (e *Election) serve(ctx context.Context, c *lock.Claim, began boottime.Instant,
	lead func(context.Context, *Term) error) (called bool, err error) {
	t, elected := e.newTerm(c), boottime.Now()
	defer func() {
		_ = c.Release(ctx) // Hooks.Lock.ReleaseFailed tells
		cause := context.Cause(c.Context())
		if !errors.Is(cause, interlock.ErrReleased) {
			err = errors.Join(err, e.fail("lead until the work was done", c.Name(), interlock.Uncertain, cause))
		}
		if called {
			e.mu.Lock()
			e.led[c.Name()] = boottime.Now()
			e.mu.Unlock()
		}
		if f := e.options.Hooks.Ended; f != nil && called {
			f(Ended{Name: c.Name(), Token: c.Token(), Held: boottime.Now().Sub(elected), Cause: cause})
		}
	}()
	leading, cancel := context.WithCancelCause(c.Context())
	defer cancel(interlock.ErrReleased)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	if err := t.takeOffice(leading); err != nil {
		return false, err
	}
	called, elected = true, boottime.Now()
	if f := e.options.Hooks.Elected; f != nil {
		f(Elected{Name: c.Name(), Token: c.Token(), Wait: elected.Sub(began)})
	}
	return true, lead(leading, t)
}
