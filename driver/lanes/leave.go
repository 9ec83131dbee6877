package lanes

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
)

// GiveUp gives up partitions. It delivers no more of their messages, waits for handlers until drain
// has passed or the session ends, and then commits the outcomes within bound.
func (c *Consumer[A]) GiveUp(session context.Context, drain, bound time.Duration, parts ...A) error {
	c.Update(func() {
		for _, a := range parts {
			a.base().Ready = false
			a.base().Revoke()
		}
	})
	cause := error(interlock.ErrReleased)
	if !c.drained(session, drain, parts) && c.Life.Err() == nil {
		cause = interlock.ErrLost
	}
	c.Update(func() {
		for _, a := range parts {
			a.base().Held = false
			a.base().End(cause)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	answers := c.Commit(ctx, parts) // also those of others that share the commit
	var failed error
	for _, a := range parts {
		if err := answers[a]; err != nil && !errors.Is(err, interlock.ErrLost) {
			failed = err
		}
	}
	return failed
}

// drained waits until no message of the partitions is being handled.
func (c *Consumer[A]) drained(session context.Context, limit time.Duration, parts []A) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		delivered := 0
		c.Mu.Lock()
		for _, a := range parts {
			if c.IsAssigned(a) {
				delivered += a.base().Offsets.Delivered()
			}
		}
		changed := c.changed
		c.Mu.Unlock()
		if delivered == 0 {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-session.Done():
			return false
		}
	}
}

// Lose ends the assignments of a session, and stores nothing. A session may call it after the next
// one has begun.
func (c *Consumer[A]) Lose(cause error, of func(A) bool) {
	c.Update(func() {
		for p, a := range c.Parts {
			if of(a) {
				a.base().End(cause)
				delete(c.Parts, p)
			}
		}
	})
}

// Remove removes assignments, unless they were replaced.
func (c *Consumer[A]) Remove(parts ...A) {
	c.Update(func() {
		for _, a := range parts {
			if c.IsAssigned(a) {
				delete(c.Parts, a.base().Partition)
			}
		}
	})
}

// Close leaves the group; see [driver.QueueConsumer].
func (c *Consumer[A]) Close(ctx context.Context) error {
	c.Mu.Lock()
	if c.closing == nil {
		c.closing = ctx
	}
	c.Mu.Unlock()
	if ctx.Err() != nil {
		c.Lose(interlock.ErrReleased, func(A) bool { return true })
	}
	c.end(interlock.ErrClosed)
	c.Loop.Wait() // the session bounds it by the context of Close
	c.members.remove(c)
	return context.Cause(ctx)
}

// Closing is the context of Close; nil before it.
func (c *Consumer[A]) Closing() context.Context {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.closing
}

// Pause waits until d has passed or ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
