package lanes

import (
	"context"
	"sync"

	"github.com/interlock-dev/interlock"
)

// Commits stores the state of assignments. One commit runs at a time. Requests that arrive
// meanwhile share the next one.
type Commits[A comparable] struct {
	// Send stores the present state of the assignments that are the keys of answers, and sets the
	// error of each. It limits its own time.
	Send func(answers map[A]error)
	// Problem is the error of an assignment whose state is not stored, or may not be.
	Problem func(a A, kind interlock.ErrorKind, err error) error

	mu      sync.Mutex
	next    *batch[A]
	sending bool
	closed  bool
	sender  sync.WaitGroup
}

// batch is one commit, shared by all who asked for it while the former one ran.
type batch[A comparable] struct {
	answers map[A]error
	done    chan struct{}
}

// Commit stores the present state of assignments, and returns an error for each.
func (c *Commits[A]) Commit(ctx context.Context, parts []A) map[A]error {
	kind, err := interlock.Definite, interlock.ErrLost
	if b := c.join(parts); b != nil {
		select {
		case <-b.done:
			return b.answers
		case <-ctx.Done():
			kind, err = interlock.Uncertain, context.Cause(ctx)
		}
	}
	answers := map[A]error{}
	for _, a := range parts {
		answers[a] = c.Problem(a, kind, err)
	}
	return answers
}

// join adds assignments to the next commit; nil after Close.
func (c *Commits[A]) join(parts []A) *batch[A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.next == nil {
		c.next = &batch[A]{map[A]error{}, make(chan struct{})}
	}
	for _, a := range parts {
		c.next.answers[a] = nil
	}
	if !c.sending {
		c.sending = true
		c.sender.Go(c.send)
	}
	return c.next
}

// send sends batches until there is none.
func (c *Commits[A]) send() {
	for {
		c.mu.Lock()
		b := c.next
		if c.next = nil; b == nil {
			c.sending = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.Send(b.answers)
		close(b.done)
	}
}

// Close waits for the commit that runs. Nothing is stored afterwards.
func (c *Commits[A]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.sender.Wait()
}
