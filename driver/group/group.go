// Package group sends waiting calls of a driver in one request. It repeats no call, and starts no
// goroutine: its owner does.
//
// Up to [Group.Requests] requests are under way at once, each sent by its caller. Further calls
// wait, and are sent together when a request is answered, or after [Group.Limit].
package group

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// LongestWait is how long a call waits at most before it is sent.
const LongestWait = 2 * time.Millisecond

// ErrUnsent reports that ctx ended before the call was sent.
var ErrUnsent = errors.New("the request was not sent")

// A Call is a question that is sent with others, and its answer.
type Call[Q, A any] struct {
	Ask    Q
	Answer A
	Err    error

	key  string
	sent bool
	done chan struct{} // closed when there is an answer
}

// A Group has the calls of one kind. Its exported fields are set before it is used.
type Group[Q, A any] struct {
	// Alone sends a call that need not wait. It is bounded by ctx.
	Alone func(ctx context.Context, ask Q) (A, error)
	// Send sends calls with different keys in one request, within its own bound, and sets
	// their answers. It runs in a task.
	Send func(calls []*Call[Q, A])
	// Go runs a task that the owner of the group waits for. It is not called after Close.
	Go func(task func())
	// Requests is how many are under way before calls wait, Calls how many one may have.
	Requests, Calls int
	// Limit is how long a call waits; 0 means LongestWait.
	Limit time.Duration

	mu       sync.Mutex
	closed   error // the error of later calls; nil while it is open
	separate bool  // no call waits, see Separate
	underWay int
	waiting  []*Call[Q, A]
	overdue  *time.Timer // sends the waiting calls; nil before the first
}

// Do sends a call and waits for its answer or ctx. It fails with ErrUnsent if ctx ends before
// the call was sent. Calls with one key are not sent together.
func (g *Group[Q, A]) Do(ctx context.Context, key string, ask Q) (A, error) {
	c, err := g.enter(key, ask)
	if err != nil {
		var none A
		return none, err
	}
	if c == nil {
		defer g.leave()
		return g.Alone(ctx, ask)
	}
	select {
	case <-c.done:
		return c.Answer, c.Err
	case <-ctx.Done():
		var none A
		return none, g.abandon(ctx, c)
	}
}

// Each sends each call in a request of its own, all at the same time, and waits for their
// answers. It is for calls that were refused together.
func Each[Q, A any](calls []*Call[Q, A], send func(calls []*Call[Q, A])) {
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() { send(calls[i : i+1]) })
	}
	all.Wait()
}

// Waiting returns the number of calls that wait to be sent.
func (g *Group[Q, A]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// Separate makes every later call be sent alone.
func (g *Group[Q, A]) Separate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.separate = true
}

// Close makes waiting and later calls fail with err.
func (g *Group[Q, A]) Close(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = err
	}
	for _, c := range g.waiting {
		c.Err = err
		close(c.done)
	}
	g.waiting = nil
}

// enter returns the call to wait for; nil if the caller sends it at once.
func (g *Group[Q, A]) enter(key string, ask Q) (*Call[Q, A], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return nil, g.closed
	case g.underWay < g.Requests || g.separate:
		g.underWay++
		return nil, nil
	}
	c := &Call[Q, A]{Ask: ask, key: key, done: make(chan struct{})}
	if g.waiting = append(g.waiting, c); len(g.waiting) == 1 {
		g.limitWait()
	}
	return c, nil
}

// limitWait schedules the waiting calls to be sent after the limit. g.mu is held.
func (g *Group[Q, A]) limitWait() {
	limit := g.Limit
	if limit == 0 {
		limit = LongestWait
	}
	if g.overdue == nil {
		g.overdue = time.AfterFunc(limit, g.hurry)
		return
	}
	g.overdue.Reset(limit)
}

// hurry sends the waiting calls beside the requests that are under way.
func (g *Group[Q, A]) hurry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 {
		g.underWay++
		g.Go(g.run)
	}
}

// leave counts out a request that was sent alone, and sends waiting calls in its place.
func (g *Group[Q, A]) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.underWay--
		return
	}
	g.Go(g.run)
}

// abandon ends the wait for c.
func (g *Group[Q, A]) abandon(ctx context.Context, c *Call[Q, A]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.sent {
		return ctx.Err()
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(w *Call[Q, A]) bool { return w == c })
	return ErrUnsent
}

// run sends waiting calls until there are none.
func (g *Group[Q, A]) run() {
	for calls := g.choose(); len(calls) > 0; calls = g.choose() {
		g.Send(calls)
		for _, c := range calls {
			close(c.done)
		}
	}
}

// choose takes waiting calls with different keys. If there are none, it counts out the run.
func (g *Group[Q, A]) choose() (calls []*Call[Q, A]) {
	runtime.Gosched() // callers that have just got an answer go along with their next call
	g.mu.Lock()
	defer g.mu.Unlock()
	keys := make(map[string]bool, len(g.waiting))
	g.waiting = slices.DeleteFunc(g.waiting, func(c *Call[Q, A]) bool {
		if keys[c.key] || len(calls) == g.Calls {
			return false
		}
		keys[c.key], c.sent = true, true
		calls = append(calls, c)
		return true
	})
	switch {
	case len(calls) == 0:
		g.underWay--
	case len(g.waiting) > 0:
		g.limitWait()
	}
	return calls
}
