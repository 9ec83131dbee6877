package idempotency

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// CompleterOptions configure a [Completer]; nil and the zero value are valid.
type CompleterOptions struct {
	// After is how long a request must have been idle before a Completer finishes it; 0 means a
	// minute.
	After time.Duration
	// Attempts is the maximum number of attempts of a request, including those of its client; 0
	// means 20. After that an operator must handle the request; a [Reaper] reports it.
	Attempts int
	// Batch is the maximum number of requests per operation in one pass; 0 means 100.
	Batch int
	// Interval is the time between two passes of Run; 0 means ten seconds.
	Interval time.Duration
}

// A Completer finishes requests whose process crashed or failed and whose client did not retry.
// It continues after the last completed phase, as a retry would. If a retry runs concurrently,
// only one of the two gets the claim.
type Completer struct {
	store   *Store
	by      map[string]Func
	options CompleterOptions
}

// NewCompleter returns a Completer for the operations that are keys of by. A function gets the
// data of a request from [Request.Input] and from the results of its phases.
func NewCompleter(s *Store, by map[string]Func, o *CompleterOptions) *Completer {
	c := &Completer{store: s, by: by}
	c.options = *cmp.Or(o, &CompleterOptions{})
	or(&c.options.After, time.Minute)
	or(&c.options.Attempts, 20)
	or(&c.options.Batch, 100)
	or(&c.options.Interval, 10*time.Second)
	return c
}

// or replaces a value that is not positive.
func or[N int | int64 | time.Duration](n *N, otherwise N) {
	if *n <= 0 {
		*n = otherwise
	}
}

// Run makes a pass each Interval until ctx ends, and returns the cause of ctx. If a pass fails,
// Run reports that to the hooks and continues with the next.
func (c *Completer) Run(ctx context.Context) error {
	return c.store.each(ctx, c.options.Interval, func(ctx context.Context) { _, _ = c.Pass(ctx) })
}

// Pass processes a batch of each operation, one request after the other, and returns how many
// it finished. The error means that the requests could not be listed. If a request cannot be
// finished, Pass reports it to the hooks and leaves it for another pass.
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

// complete finishes a request, unless another attempt has taken it over.
func (c *Completer) complete(ctx context.Context, record driver.IdempotencyRecord, fn Func) (done bool, err error) {
	r, err := c.store.takeUp(ctx, record)
	if r == nil || err != nil {
		return false, err
	}
	_, done, err = c.store.run(ctx, r, fn)
	return done, err
}

// takeUp claims an unfinished request. If the request is finished, in flight or removed, it
// returns nil.
func (s *Store) takeUp(ctx context.Context, record driver.IdempotencyRecord) (*Request, error) {
	claim := driver.IdempotencyClaim{ID: record.ID, Fingerprint: record.Fingerprint, Owner: crand.Text(), Lease: s.options.Lease}
	r, outcome, err := s.await(ctx, claim, 0)
	switch {
	case err != nil:
		return nil, err
	case outcome != ours:
		return nil, nil
	case r.record.Attempt == 1: // the claim created the record: the previous one was removed meanwhile
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

// left reports an unfinished request.
func (s *Store) left(r driver.IdempotencyRecord, discarded bool, err error) {
	report.Now(s.options.Hooks.Unfinished, observe.IdempotencyUnfinished{Scope: r.ID.Scope, Operation: r.ID.Operation, Key: r.ID.Key,
		Attempt: r.Attempt, Age: r.Age, Lapsed: -r.Remaining, Discarded: discarded, Err: err})
}

// each calls pass at about every interval until ctx ends.
func (s *Store) each(ctx context.Context, interval time.Duration, pass func(context.Context)) error {
	for ctx.Err() == nil {
		pass(ctx)
		// A random pause spreads processes that started together.
		_ = backoff.Sleep(ctx, interval/2) && backoff.Sleep(ctx, rand.N(interval))
	}
	return context.Cause(ctx)
}
