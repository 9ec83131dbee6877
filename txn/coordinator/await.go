package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
)

// Await blocks until done says true, which looks at the transaction, whichever process drives
// it. It is asked at once, whenever a turn of the transaction ends here, and every
// Options.Poll. A Definite error or a Bug of done is returned; others are asked again.
// When ctx ends the transaction goes on, and the error is Uncertain.
func (c *Coordinator) Await(ctx context.Context, id string, done func(ctx context.Context) (bool, error)) error {
	rested := c.listen(id)
	defer c.unlisten(id, rested)
	for {
		is, err := done(ctx)
		if err == nil && is {
			return nil
		}
		if kind := interlock.Kind(err); err != nil && ctx.Err() == nil && (kind == interlock.Definite || kind == interlock.Bug) {
			return err
		}
		timer := time.NewTimer(c.options.Poll)
		select {
		case <-rested:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &interlock.Error{Op: "wait for transaction", Name: id, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		}
		timer.Stop()
	}
}

func (c *Coordinator) listen(id string) chan struct{} {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters[id] = append(c.waiters[id], ch)
	return ch
}

func (c *Coordinator) unlisten(id string, ch chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.waiters[id], func(other chan struct{}) bool { return other == ch })
	if c.waiters[id] = left; len(left) == 0 {
		delete(c.waiters, id)
	}
}

// tell wakes those who wait for a transaction.
func (c *Coordinator) tell(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.waiters[id] {
		signal(ch)
	}
}

// signal leaves a sign in a channel that holds one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
