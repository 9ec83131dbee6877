package lanes

import (
	"context"
	"sync"

	"github.com/interlock-dev/interlock"
)

// Commits stores the state of assignments. One commit is on its way at a time; the next one takes
// all that were asked for since.
type Commits[A comparable] struct {
	// Send stores the present state of assignments, the keys of answers, and notes an error for
	// each, nil if it is stored. It has its own bound.
	Send func(answers map[A]error)
	// Problem is the error of an assignment whose state is not stored, or of which that is unknown.
	Problem func(a A, kind interlock.ErrorKind, err error) error

	mu      sync.Mutex
	next    *batch[A]
	sending bool
	closed  bool
	sender  sync.WaitGroup
}

// batch is one commit: of all for which somebody asked while the former one was on its way.
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

// send sends batches until nobody asks for one.
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

// Close waits for the commit that is on its way. Nothing is stored after it.
func (c *Commits[A]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.sender.Wait()
}
