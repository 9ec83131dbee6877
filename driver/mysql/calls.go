package mysql

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
)

// calls tracks the statements under way of a Table. It also waits for those without a waiting
// caller, because the server still executes them.
type calls struct {
	limit time.Duration // of each

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// do runs send, which has its own bound, and waits for it or ctx.
func (c *calls) do(ctx context.Context, op, name string, send func(context.Context) error) error {
	if ctx.Err() != nil {
		return fail.Unsent(ctx, op, name)
	}
	if !c.begin() {
		return fail.Closed(op, name)
	}
	done := make(chan error, 1)
	go func() {
		defer c.running.Done()
		bounded, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), c.limit, errNoAnswer)
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
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
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
