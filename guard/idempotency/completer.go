package idempotency

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// CompleterOptions of a [Completer]; nil and the zero value work.
type CompleterOptions struct {
	// After is for how long nobody has worked on a request when it is finished
	// without its client; 0 means a minute.
	After time.Duration
	// Attempts is how many attempts a request is given altogether, those of its
	// client included; 0 means 20. One that had them is left for a person, who is
	// reported by a [Reaper].
	Attempts int
	// Batch is how many requests of an operation one pass takes up; 0 means 100.
	Batch int
	// Interval is the time between two passes of Run; 0 means ten seconds.
	Interval time.Duration
}

// A Completer finishes requests whose process died, or failed, and whose client did
// not come back. It goes on after the last phase that was done, as a retry would,
// and has the same right to the request as one: both may try at the same time.
type Completer struct {
	store   *Store
	by      map[string]Func
	options CompleterOptions
}

// NewCompleter finishes requests of the operations that by names. What a function
// needs to know of a request it has from [Request.Input] and its phases' results.
func NewCompleter(s *Store, by map[string]Func, o *CompleterOptions) *Completer {
	c := &Completer{store: s, by: by}
	if o != nil {
		c.options = *o
	}
	or(&c.options.After, time.Minute)
	or(&c.options.Attempts, 20)
	or(&c.options.Batch, 100)
	or(&c.options.Interval, 10*time.Second)
	return c
}

// or replaces what is not positive.
func or[N int | int64 | time.Duration](n *N, otherwise N) {
	if *n <= 0 {
		*n = otherwise
	}
}

// Run makes a pass each Interval until ctx ends, and returns its cause. A pass that
// fails is reported to the hooks, and followed by the next.
func (c *Completer) Run(ctx context.Context) error {
	return c.store.each(ctx, c.options.Interval, func(ctx context.Context) { _, _ = c.Pass(ctx) })
}

// Pass takes up a batch of each operation, one request after the other, and
// returns how many were finished, and why the requests could not be listed. A
// request that cannot be finished is left for another pass, and reported to the hooks.
func (c *Completer) Pass(ctx context.Context) (finished int, err error) {
	for operation, fn := range c.by {
		found, err := c.store.unfinished(ctx, driver.IdempotencyQuery{Operation: operation,
			Lapsed: c.options.After, Attempts: c.options.Attempts, Limit: c.options.Batch})
		if err != nil {
			return finished, err
		}
		for _, record := range found {
			if ctx.Err() != nil {
				return finished, context.Cause(ctx)
			}
			done, err := c.complete(ctx, record, fn)
			if done {
				finished++
			}
			if err != nil {
				c.store.left(record, false, err)
			}
		}
	}
	return finished, nil
}

// complete takes a request up, unless somebody else has.
func (c *Completer) complete(ctx context.Context, record driver.IdempotencyRecord, fn Func) (done bool, err error) {
	r, err := c.store.takeUp(ctx, record)
	if r == nil || err != nil {
		return false, err
	}
	_, done, err = c.store.run(ctx, r, fn)
	return done, err
}

// takeUp claims an unfinished request; nil if there is nothing to take any more.
func (s *Store) takeUp(ctx context.Context, record driver.IdempotencyRecord) (*Request, error) {
	claim := driver.IdempotencyClaim{ID: record.ID, Fingerprint: record.Fingerprint, Owner: s.owner(), Lease: s.options.Lease}
	r, outcome, err := s.await(ctx, claim, 0)
	switch {
	case err != nil:
		return nil, err
	case outcome != ours:
		return nil, nil
	case r.record.Attempt == 1: // this claim has made it: that one was given up and forgotten meanwhile
		return nil, s.give(ctx, r, true)
	}
	return r, nil
}

func (s *Store) unfinished(ctx context.Context, q driver.IdempotencyQuery) (found []driver.IdempotencyRecord, err error) {
	err = s.persist(ctx, func(int) (bool, error) {
		found, err = s.records.Unfinished(ctx, q)
		return again(err), err
	})
	return found, err
}

// left tells of a request that nobody works on.
func (s *Store) left(r driver.IdempotencyRecord, discarded bool, err error) {
	if hook := s.options.Hooks.Unfinished; hook != nil {
		hook(observe.IdempotencyUnfinished{Scope: r.ID.Scope, Operation: r.ID.Operation, Key: r.ID.Key,
			Attempt: r.Attempt, Age: r.Age, Lapsed: -r.Remaining, Discarded: discarded, Err: err})
	}
}

// each makes a pass now and then, at about every interval, until ctx ends.
func (s *Store) each(ctx context.Context, interval time.Duration, pass func(context.Context)) error {
	for ctx.Err() == nil {
		pass(ctx)
		// Processes that started together need not stay together.
		if err := pause(ctx, interval/2+time.Duration(s.random()*float64(interval))); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
