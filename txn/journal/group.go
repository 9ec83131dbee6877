package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Group commit: appends that come while others are under way travel together. A
// request is sent at once if fewer than Options.Requests are under way, so that
// nobody waits for company. No member of a group fails for another one's fault: a
// group that the store refuses as a whole is sent again in parts.

// waiter is an append that waits for its turn and its outcome.
type waiter struct {
	request driver.Append
	alone   bool       // it travels by itself
	outcome chan error // has room for one
	behind  bool       // an append of the same transaction had an unknown outcome while this one waited
}

// enqueue appends in the company of others, unless alone. When ctx ends, the outcome is
// unknown if the request was sent, or if another append of the same transaction was sent or
// is to be sent before it: that one may have begun the transaction.
func (j *Journal) enqueue(ctx context.Context, a *driver.Append, alone bool) error {
	w := &waiter{request: *a, alone: alone, outcome: make(chan error, 1)}
	if err := j.join(w); err != nil {
		return err
	}
	select {
	case err := <-w.outcome:
		a.Ended = w.request.Ended
		return w.judge(err)
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
	behind := w.behind || j.busy[w.request.Transaction]
	for i, other := range j.waiting {
		if other == w {
			j.waiting = append(j.waiting[:i:i], j.waiting[i+1:]...)
			return w.unsent(cause, behind)
		}
		behind = behind || other.request.Transaction == w.request.Transaction
	}
	select {
	case err := <-w.outcome:
		return w.judge(err)
	default:
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Uncertain,
			Err: fmt.Errorf("no answer yet: %w", cause)}
	}
}

// unsent is the error of an append that was not sent.
func (w *waiter) unsent(cause error, behind bool) error {
	kind := interlock.Definite
	switch {
	case behind:
		kind, cause = interlock.Uncertain, fmt.Errorf("%w: %w", errBehind, cause)
	case errors.Is(cause, errPatience):
		kind = interlock.Retryable
	}
	return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: kind, Err: cause}
}

// judge is the outcome of a request that was sent. If the store refuses it for now, an
// append before it may still have been done.
func (w *waiter) judge(err error) error {
	if err == nil || interlock.Kind(err) != interlock.Retryable || !w.behind {
		return err
	}
	return w.unsent(err, true)
}

var errBehind = errors.New("the outcome of an earlier append of the same transaction is unknown")

// fly sends requests until nobody waits.
func (j *Journal) fly() {
	for group := j.board(); len(group) > 0; group = j.board() {
		requests := make([]driver.Append, len(group))
		for i, w := range group {
			requests[i] = w.request
		}
		ctx, cancel := context.WithTimeout(j.life, j.options.Patience)
		outcomes := j.send(ctx, requests)
		cancel()
		j.land(group, outcomes)
		for i, w := range group {
			w.request.Ended = requests[i].Ended
			w.outcome <- outcomes[i]
		}
	}
}

// send appends. Members of a group that fail for a reason that may be another member's
// are sent again in two halves: nothing of them was done.
func (j *Journal) send(ctx context.Context, requests []driver.Append) []error {
	outcomes := j.store.Append(ctx, requests)
	var again []int
	for i, err := range outcomes {
		if len(requests) > 1 && ctx.Err() == nil && unspecific(err) {
			again = append(again, i)
		}
	}
	if len(again) == 0 {
		return outcomes
	}
	for half := range slices.Chunk(again, (len(again)+1)/2) {
		part := make([]driver.Append, len(half))
		for k, i := range half {
			part[k] = requests[i]
		}
		for k, err := range j.send(ctx, part) {
			outcomes[half[k]] = err
			requests[half[k]].Ended = part[k].Ended
		}
	}
	return outcomes
}

// unspecific reports whether an append was refused for a reason that may be that of
// another one in the same request: a value that the store does not take, or a lock that
// a transaction outside holds.
func unspecific(err error) bool {
	var elsewhere *driver.PositionError
	var other *driver.ShardsError
	if err == nil || errors.As(err, &elsewhere) || errors.As(err, &other) || errors.Is(err, interlock.ErrStaleToken) {
		return false
	}
	return interlock.Kind(err) == interlock.Definite || errors.Is(err, interlock.ErrHeld)
}

// board takes those who wait, as many as travel together, and none whose
// transaction is under way already; one that travels alone only by itself. If there are
// none the flight has ended.
func (j *Journal) board() []*waiter {
	j.mu.Lock()
	defer j.mu.Unlock()
	var group, rest []*waiter
	for _, w := range j.waiting {
		full := len(group) == j.options.Group || len(group) > 0 && (w.alone || group[0].alone)
		if full || j.busy[w.request.Transaction] {
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

// land ends a flight. Appends that wait behind one of unknown outcome are marked.
func (j *Journal) land(group []*waiter, outcomes []error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	lost := map[string]bool{}
	for i, w := range group {
		delete(j.busy, w.request.Transaction)
		if outcomes[i] != nil && interlock.Kind(outcomes[i]) == interlock.Uncertain {
			lost[w.request.Transaction] = true
		}
	}
	if len(lost) == 0 {
		return
	}
	for _, w := range j.waiting {
		w.behind = w.behind || lost[w.request.Transaction]
	}
}
