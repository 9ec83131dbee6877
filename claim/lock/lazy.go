package lock

import (
	"context"
	"sync"
	"time"
)

// lazyContext is the context of a request. Its channel and timer are created at their first use,
// because most requests are answered before. The zero value needs a parent. It ends with end, at its
// deadline, or with its parent.
type lazyContext struct {
	parent   context.Context
	detached bool      // it has only the values of parent
	deadline time.Time // zero means none

	mu     sync.Mutex
	made   context.Context // nil until it is needed
	cancel context.CancelCauseFunc
	ended  bool
	cause  error // of end
}

var _ context.Context = (*lazyContext)(nil)

// end ends the context and frees its resources. The first cause counts.
func (c *lazyContext) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	if c.cancel != nil {
		c.cancel(cause)
	}
}

func (c *lazyContext) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return c.made
	}
	parent := c.parent
	if c.detached {
		parent = context.WithoutCancel(parent)
	}
	if c.deadline.IsZero() || c.ended {
		c.made, c.cancel = context.WithCancelCause(parent)
	} else {
		bounded, stop := context.WithDeadline(parent, c.deadline)
		c.made, c.cancel = bounded, func(error) { stop() }
	}
	if c.ended {
		c.cancel(c.cause)
	}
	return c.made
}

func (c *lazyContext) Done() <-chan struct{} { return c.make().Done() }

// Value returns that of the made context, so that children find it and its cause.
func (c *lazyContext) Value(key any) any { return c.make().Value(key) }

func (c *lazyContext) Deadline() (time.Time, bool) {
	at, ok := c.deadline, !c.deadline.IsZero()
	if c.detached {
		return at, ok
	}
	if parents, bounded := c.parent.Deadline(); bounded && (!ok || parents.Before(at)) {
		return parents, true
	}
	return at, ok
}

func (c *lazyContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.made != nil:
		return c.made.Err()
	case c.ended:
		return context.Canceled
	case !c.detached && c.parent.Err() != nil:
		return c.parent.Err()
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return nil
}
