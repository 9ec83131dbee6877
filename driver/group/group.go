// Package group sends calls of drivers that wait together in one request. It does not repeat, and
// has no goroutine but those that its owner starts.
//
// Up to a number of requests are under way at once, each sent by its caller. What is
// called meanwhile waits, and is sent when one of them has its answer, or a little later.
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

// ErrUnsent says that a call was given up before it was sent.
var ErrUnsent = errors.New("the request was not sent")

// A Call is a question, and its answer once it was sent with others.
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
	// Alone sends a call that does not wait, until ctx ends.
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
	closed   error // what is called afterwards fails with it
	separate bool  // nothing waits, see Separate
	underWay int
	waiting  []*Call[Q, A]
	overdue  *time.Timer // sends what waits; nil before anything did
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

// Each sends calls that were refused together one by one, at the same time, and waits for
// their answers.
func Each[Q, A any](calls []*Call[Q, A], send func(calls []*Call[Q, A])) {
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() { send(calls[i : i+1]) })
	}
	all.Wait()
}

// Waiting is how many calls wait to be sent.
func (g *Group[Q, A]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// Separate has every call sent alone from now on.
func (g *Group[Q, A]) Separate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.separate = true
}

// Close has what waits, and what is called from now on, fail with err.
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

// enter returns the call to wait for; nil if it is to be sent at once.
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

// limitWait has what waits sent after the limit. g.mu is held.
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

// hurry sends what has waited for long beside the requests that are under way.
func (g *Group[Q, A]) hurry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 {
		g.underWay++
		g.Go(g.run)
	}
}

// leave counts out a request that was sent alone, and has others sent in its place.
func (g *Group[Q, A]) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.underWay--
		return
	}
	g.Go(g.run)
}

// abandon gives up the wait for c.
func (g *Group[Q, A]) abandon(ctx context.Context, c *Call[Q, A]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.sent {
		return ctx.Err()
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(w *Call[Q, A]) bool { return w == c })
	return ErrUnsent
}

// run sends what waits until nothing does.
func (g *Group[Q, A]) run() {
	for calls := g.choose(); len(calls) > 0; calls = g.choose() {
		g.Send(calls)
		for _, c := range calls {
			close(c.done)
		}
	}
}

// choose takes calls with different keys. If none waits the run ends.
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
