package limit

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const (
	maxRuns  = 2    // how many requests to the store are under way at once
	maxCalls = 4096 // of one request

	runTimeout = 10 * time.Second // of one request that several calls share
)

// coalescer sends calls to a store. While maxRuns requests are under way calls wait, and then go
// together: those for one unit of a key as one charge. An answer to one charge is divided in the
// order in which its calls came.
type coalescer struct {
	store   driver.Limiter
	running sync.WaitGroup // requests that are not a caller's own

	mu      sync.Mutex
	runs    int
	waiting []*waiter
}

// waiter is a call that waits to be sent, and then for its answer.
type waiter struct {
	call   driver.LimitCall
	answer driver.LimitAnswer
	done   chan struct{}
}

// take decides one call. If ctx ends while the call waits it was not sent.
func (c *coalescer) take(ctx context.Context, call driver.LimitCall) driver.LimitAnswer {
	c.mu.Lock()
	if c.runs < maxRuns {
		c.runs++
		c.mu.Unlock()
		a := c.store.Take(ctx, []driver.LimitCall{call})[0]
		c.next()
		return a
	}
	w := &waiter{call: call, done: make(chan struct{})}
	c.waiting = append(c.waiting, w)
	c.mu.Unlock()
	select {
	case <-w.done:
		return w.answer
	case <-ctx.Done():
		return driver.LimitAnswer{Err: &interlock.Error{Op: "limit", Name: call[0].Key, Kind: c.leave(w), Err: context.Cause(ctx)}}
	}
}

// leave takes back a call, unless it was sent.
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

// next ends a request, and begins one with the calls that wait.
func (c *coalescer) next() {
	if some := c.pick(); len(some) > 0 {
		c.running.Go(func() {
			for ; len(some) > 0; some = c.pick() {
				c.send(some)
			}
		})
	}
}

// pick takes calls that wait, in order; without any the request of the caller has ended.
func (c *coalescer) pick() []*waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := c.waiting[:min(len(c.waiting), maxCalls)]
	c.waiting = c.waiting[len(some):]
	if len(some) == 0 {
		c.runs, c.waiting = c.runs-1, nil
	}
	return some
}

// unit is what calls for one unit have in common.
type unit struct {
	key  string
	rate Rate
}

// send asks the store about calls. No caller's context ends the request: callers stop waiting.
func (c *coalescer) send(some []*waiter) {
	var calls []driver.LimitCall
	var of [][]*waiter
	merged := map[unit]int{}
	for _, w := range some {
		first := w.call[0]
		u := unit{first.Key, first.Rate}
		if i, ok := merged[u]; ok && w.isUnit() {
			calls[i][0].Cost++
			of[i] = append(of[i], w)
			continue
		}
		if w.isUnit() {
			merged[u] = len(calls)
			first.Least = 1
			w.call = driver.LimitCall{first}
		}
		calls, of = append(calls, w.call), append(of, []*waiter{w})
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	for i, a := range c.store.Take(ctx, calls) {
		divide(a, of[i])
	}
}

func (w *waiter) isUnit() bool { return len(w.call) == 1 && w.call[0].Cost == 1 }

// divide answers calls for one unit each, or one call.
func divide(a driver.LimitAnswer, to []*waiter) {
	for i, w := range to {
		w.answer = a
		if len(to) > 1 && a.Err == nil {
			w.answer.Decisions = []driver.Decision{part(a.Decisions[0], int64(i))}
		}
		close(w.done)
	}
}

// part is the decision for the unit after n others. What remains are also the units of those
// that come after it.
func part(d driver.Decision, n int64) driver.Decision {
	if d.Allowed = n < d.Granted; d.Allowed {
		d.Remaining += d.Granted - n - 1
		d.Granted, d.RetryAfter = 1, 0
		return d
	}
	d.Granted = 0
	return d
}
