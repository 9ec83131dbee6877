package mysql

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
)

// calls are the statements under way of a Table. One whose caller has gone is
// still waited for, here: the server carries it out all the same, and what the
// same owner asks for next must come after it.
type calls struct {
	limit time.Duration // of each

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	last    map[string]chan struct{} // by owner, the end of its latest call
}

// do runs send, which has its own bound, and waits for it or ctx. owner may be
// empty: then it is in no order.
func (c *calls) do(ctx context.Context, op, name, owner string, send func(context.Context) error) error {
	if ctx.Err() != nil {
		return fail.Unsent(ctx, op, name)
	}
	before, end, open := c.begin(owner)
	if !open {
		return fail.Closed(op, name)
	}
	done := make(chan error, 1)
	go func() {
		defer end()
		if before != nil {
			<-before
		}
		bounded, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), c.limit, errNoWord)
		defer cancel()
		done <- ofStatement(bounded, op, name, send(bounded))
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fail.Unanswered(ctx, op, name)
	}
}

// begin counts a call, unless the Table was closed.
func (c *calls) begin(owner string) (before <-chan struct{}, end func(), open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, false
	}
	c.running.Add(1)
	if owner == "" {
		return nil, c.running.Done, true
	}
	this := make(chan struct{})
	before, c.last[owner] = c.last[owner], this
	return before, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		close(this)
		if c.last[owner] == this {
			delete(c.last, owner)
		}
		c.running.Done()
	}, true
}

func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// wait waits for the calls under way.
func (c *calls) wait(ctx context.Context) error {
	if err := join.Wait(ctx, c.running.Wait); err != nil {
		return problem("close", "", interlock.Retryable, err)
	}
	return nil
}
