package limit

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const (
	maxRuns  = 2    // concurrent requests to the store
	maxCalls = 4096 // calls in one request

	runTimeout = 10 * time.Second // for a request; that of a single call is no longer counted after it
)

// coalescer sends calls to a store. While maxRuns requests are in progress, calls wait; then they share
// one request, and calls for one unit of a key share one charge. The answer to a charge is divided in
// the order of the calls.
type coalescer struct {
	store   driver.Limiter
	running sync.WaitGroup // shared requests
	spare   sync.Pool      // of waiters

	mu      sync.Mutex
	runs    int
	waiting []*waiter
}

// waiter is a call that waits to be sent, and then for its answer.
type waiter struct {
	call   driver.LimitCall
	answer driver.LimitAnswer
	done   chan struct{} // capacity 1: the answer is there

	next, last *waiter // calls of one charge; only the first has last
}

// take decides one call. If ctx ends while the call waits, it is not sent.
func (c *coalescer) take(ctx context.Context, call driver.LimitCall) driver.LimitAnswer {
	c.mu.Lock()
	if c.runs < maxRuns {
		c.runs++
		c.mu.Unlock()
		lost := time.AfterFunc(runTimeout, c.next) // the caller may wait longer; others do not
		a := c.store.Take(ctx, []driver.LimitCall{call})[0]
		if lost.Stop() {
			c.next()
		}
		return a
	}
	w, _ := c.spare.Get().(*waiter)
	if w == nil {
		w = &waiter{done: make(chan struct{}, 1)}
	}
	w.call = call
	c.waiting = append(c.waiting, w)
	c.mu.Unlock()
	select {
	case <-w.done:
		a := w.answer
		*w = waiter{done: w.done}
		c.spare.Put(w)
		return a
	case <-ctx.Done():
		return driver.LimitAnswer{Err: &interlock.Error{Op: "limit", Name: call[0].Key, Kind: c.leave(w), Err: context.Cause(ctx)}}
	}
}

// leave removes a call, unless it was sent.
func (c *coalescer) leave(w *waiter) interlock.ErrorKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.waiting {
		if other == w {
			c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
			return interlock.Definite
		}
	}
	return interlock.Uncertain
}

// next ends a request, and starts one with the calls that wait.
func (c *coalescer) next() {
	if some := c.pick(nil); len(some) > 0 {
		c.running.Go(func() {
			for ; len(some) > 0; some = c.pick(some) {
				c.send(some)
			}
		})
	}
}

// pick removes the calls that wait, in order. If there are none, it ends the caller's request. Later
// calls are collected in spare.
func (c *coalescer) pick(spare []*waiter) []*waiter {
	clear(spare)
	c.mu.Lock()
	defer c.mu.Unlock()
	some := c.waiting
	switch {
	case len(some) == 0:
		c.runs, c.waiting = c.runs-1, nil
	case len(some) > maxCalls:
		some, c.waiting = some[:maxCalls:maxCalls], some[maxCalls:]
	default:
		c.waiting = spare[:0]
	}
	return some
}

// unit identifies the calls that can share a charge.
type unit struct {
	key  string
	rate Rate
}

// send sends calls to the store. The contexts of callers do not end the request: callers stop waiting.
func (c *coalescer) send(some []*waiter) {
	var calls []driver.LimitCall
	var of []*waiter // the first of each call
	var charges []driver.Charge
	merged := map[unit]int{}
	for _, w := range some {
		first := w.call[0]
		if len(w.call) > 1 || first.Cost != 1 {
			calls, of = append(calls, w.call), append(of, w)
			continue
		}
		u := unit{first.Key, first.Rate}
		if i, ok := merged[u]; ok {
			calls[i][0].Cost++
			of[i].last.next, of[i].last = w, w
			continue
		}
		merged[u] = len(calls)
		first.Least = 1
		charges = append(charges, first) // a copy: callers keep theirs
		calls, of = append(calls, charges[len(charges)-1:]), append(of, w)
		w.last = w
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	for i, a := range c.store.Take(ctx, calls) {
		divide(a, of[i], calls[i][0].Cost)
	}
}

// divide answers one call, or the n calls of one charge.
func divide(a driver.LimitAnswer, first *waiter, n int64) {
	var parts []driver.Decision
	if first.next != nil && a.Err == nil {
		parts = make([]driver.Decision, n)
	}
	for i, w := 0, first; w != nil; i++ {
		w.answer = a
		if parts != nil {
			parts[i] = part(a.Decisions[0], int64(i))
			w.answer.Decisions = parts[i : i+1 : i+1]
		}
		next := w.next
		w.done <- struct{}{} // from here on the caller owns it
		w = next
	}
}

// part returns the decision for the unit after n others. Remaining includes the units of later calls.
func part(d driver.Decision, n int64) driver.Decision {
	if d.Allowed = n < d.Granted; d.Allowed {
		d.Remaining += d.Granted - n - 1
		d.Granted, d.RetryAfter = 1, 0
		return d
	}
	d.Granted = 0
	return d
}

const maxDenials = 10_000 // exhausted limits that are cached

// maxDenial is how long calls for an exhausted limit are refused without a request. What others refund or
// reset takes effect by then, and so does the time for which the machine was suspended.
const maxDenial = time.Minute

// denials caches limits that are exhausted, and until when. They refuse calls without a request. They
// never admit one; a refund by another process takes effect late.
type denials struct {
	mu  sync.Mutex
	all map[unit]denial
}

type denial struct {
	until, retry, reset time.Time
}

// ofOne reports whether one unit is enough for a charge.
func ofOne(c driver.Charge) bool { return c.Cost == 1 || c.Least == 1 }

// find refuses a call for an exhausted limit. Only the store knows when several units are there.
func (d *denials) find(call driver.LimitCall) ([]driver.Decision, bool) {
	if len(call) > 1 || !ofOne(call[0]) {
		return nil, false
	}
	d.mu.Lock()
	known, ok := d.all[unit{call[0].Key, call[0].Rate}]
	d.mu.Unlock()
	if !ok {
		return nil, false
	}
	now := time.Now()
	if !now.Before(known.until) {
		return nil, false
	}
	return []driver.Decision{{RetryAfter: known.retry.Sub(now), ResetAfter: max(0, known.reset.Sub(now))}}, true
}

// note caches an answer. Times count from when the call was sent, so a denial ends before the store
// admits again, not after.
func (d *denials) note(call driver.LimitCall, a driver.LimitAnswer, sent time.Time) {
	if len(call) > 1 || call[0].Cost == 0 {
		return
	}
	c, x := call[0], a.Decisions[0]
	exhausted := !x.Allowed && x.Remaining == 0 && ofOne(c)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !exhausted {
		if len(d.all) > 0 {
			delete(d.all, unit{c.Key, c.Rate})
		}
		return
	}
	if d.all == nil || len(d.all) >= maxDenials {
		d.all = map[unit]denial{}
	}
	d.all[unit{c.Key, c.Rate}] = denial{sent.Add(min(x.RetryAfter, maxDenial)), sent.Add(x.RetryAfter), sent.Add(x.ResetAfter)}
}
