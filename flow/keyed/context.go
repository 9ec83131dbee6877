package keyed

import (
	"context"
	"sync"
)

// inside is the context that a task is given: that of its submitter, ended also
// when the executor abandons its tasks and when the task has returned. The joining
// of the two costs more than a small task does, so it is left until somebody asks.
type inside[T any] struct {
	context.Context
	x *engine[T]

	mu     sync.Mutex
	ended  bool
	joined context.Context // nil until it is needed
	leave  func()
}

// insideKey finds the task of an executor that a context belongs to.
type insideKey[T any] struct{ x *engine[T] }

func (x *engine[T]) enter(ctx context.Context) *inside[T] { return &inside[T]{Context: ctx, x: x} }

// inside reports whether ctx is that of a task that runs here.
func (x *engine[T]) inside(ctx context.Context) bool {
	return ctx.Value(x.key) != nil
}

// end ends it: the task has returned.
func (c *inside[T]) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.joined != nil {
		c.leave()
	}
}

// join joins the contexts, unless that was done. The mutex is held.
func (c *inside[T]) join() context.Context {
	if c.joined != nil {
		return c.joined
	}
	joined, cancel := context.WithCancelCause(c.Context)
	if c.x.ctx.Err() != nil {
		cancel(context.Cause(c.x.ctx)) // at once, for an Err that follows
	}
	unhook := context.AfterFunc(c.x.ctx, func() { cancel(context.Cause(c.x.ctx)) })
	c.joined, c.leave = joined, func() { unhook(); cancel(nil) }
	if c.ended {
		c.leave()
	}
	return joined
}

// Done is closed when either ends.
func (c *inside[T]) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.join().Done()
}

// Err is not nil once either has ended.
func (c *inside[T]) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined == nil && !c.ended && c.x.ctx.Err() == nil {
		return c.Context.Err()
	}
	return c.join().Err()
}

// Value is the submitter's.
func (c *inside[T]) Value(key any) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key == c.x.key {
		if c.ended {
			return nil
		}
		return c
	}
	if c.joined != nil {
		return c.joined.Value(key) // the package context looks for its own cause here
	}
	return c.Context.Value(key)
}
