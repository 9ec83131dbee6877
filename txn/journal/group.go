package journal

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Group commit: appends that come while others are under way travel together. A
// request is sent at once if fewer than Options.Requests are under way, so that
// nobody waits for company.

// waiter is an append that waits for its turn and its outcome.
type waiter struct {
	request driver.Append
	outcome chan error // has room for one
}

// enqueue appends in the company of others. When ctx ends, the outcome is not known
// if the request has left.
func (j *Journal) enqueue(ctx context.Context, a driver.Append) error {
	w := &waiter{request: a, outcome: make(chan error, 1)}
	if err := j.join(w); err != nil {
		return err
	}
	select {
	case err := <-w.outcome:
		return err
	case <-ctx.Done():
		return j.leave(w, context.Cause(ctx))
	}
}

// join lets w wait, and sends a request if one more may be under way.
func (j *Journal) join(w *waiter) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Bug, Err: interlock.ErrClosed}
	}
	j.waiting = append(j.waiting, w)
	if j.flights < j.options.Requests {
		j.flights++
		j.work.Go(j.fly)
	}
	return nil
}

// leave gives up waiting.
func (j *Journal) leave(w *waiter, cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, other := range j.waiting {
		if other == w {
			j.waiting = append(j.waiting[:i:i], j.waiting[i+1:]...)
			return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Definite, Err: cause}
		}
	}
	select {
	case err := <-w.outcome:
		return err
	default:
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Uncertain,
			Err: fmt.Errorf("no answer yet: %w", cause)}
	}
}

// fly sends requests until nobody waits.
func (j *Journal) fly() {
	for group := j.board(); len(group) > 0; group = j.board() {
		requests := make([]driver.Append, len(group))
		for i, w := range group {
			requests[i] = w.request
		}
		ctx, cancel := context.WithTimeout(j.life, j.options.Patience)
		outcomes := j.store.Append(ctx, requests)
		cancel()
		j.land(group)
		for i, w := range group {
			w.outcome <- outcomes[i]
		}
	}
}

// board takes those who wait, as many as travel together, and none whose
// transaction is under way already. If there are none the flight has ended.
func (j *Journal) board() []*waiter {
	j.mu.Lock()
	defer j.mu.Unlock()
	var group, rest []*waiter
	for _, w := range j.waiting {
		if len(group) == j.options.Group || j.busy[w.request.Transaction] {
			rest = append(rest, w)
			continue
		}
		j.busy[w.request.Transaction] = true
		group = append(group, w)
	}
	j.waiting = rest
	if len(group) == 0 {
		j.flights--
	}
	return group
}

func (j *Journal) land(group []*waiter) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, w := range group {
		delete(j.busy, w.request.Transaction)
	}
}
