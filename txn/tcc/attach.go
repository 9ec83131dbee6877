package tcc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/txn/branch"
)

// attach returns the existing decision, if it is on the same transaction. It waits for the decision of a
// submitted transaction.
func (r *run) attach(ctx context.Context) (Outcome, error) {
	const op = "run transaction"
	m := r.engine
	head, is, err := m.read(ctx, op, r.id)
	if err == nil && is.state() == Trying && r.difference(head, is) == "" {
		err = m.coordinator.Await(ctx, r.id, func(ctx context.Context) (bool, error) {
			head, is, err = m.read(ctx, op, r.id)
			return is.state() != Trying, err
		})
	}
	if err != nil {
		return Outcome{}, err
	}
	return r.join(head, is)
}

func (r *run) join(head driver.Head, is machine) (Outcome, error) {
	if problem := r.difference(head, is); problem != "" {
		return Outcome{}, &MismatchError{ID: r.id, Problem: problem}
	}
	o := is.outcome(head)
	if is.decision == Cancel {
		return o, &CancelledError{ID: r.id, Reason: o.Reason}
	}
	return o, nil
}

// difference returns the difference from the transaction that was decided. A cancellation on request
// of a participant has no branches, and fits any transaction.
func (r *run) difference(head driver.Head, is machine) string {
	if len(is.members) == 0 {
		return ""
	}
	if head.Type != r.kind {
		return fmt.Sprintf("it was run as a %q, not as a %q: give this one another id", name(head.Type), name(r.kind))
	}
	for _, t := range r.tries {
		b := is.find(t.branch)
		if b == nil || b.resource != t.resource || !bytes.Equal(b.request, t.request) {
			return fmt.Sprintf("it was run without branch %q, or with another request for it: repeat a run with the same branches, or give this one another id", t.branch)
		}
	}
	if len(is.members) != len(r.tries) {
		return fmt.Sprintf("it was run with %d branches, not with %d: repeat a run with the same branches, or give this one another id", len(is.members), len(r.tries))
	}
	return ""
}

// follow adopts a decision that another process made during this Run, and cancels what this Run holds
// beyond it.
func (r *run) follow(ctx context.Context) (Outcome, error) {
	head, is, err := r.readDecision(ctx)
	var other *MismatchError
	switch {
	case errors.As(err, &other): // of another protocol
		r.release(ctx, &machine{})
		return Outcome{}, err
	case err != nil:
		return Outcome{}, &interlock.Error{Op: "run transaction", Name: r.id, Kind: interlock.Uncertain, Err: err}
	}
	r.release(ctx, &is)
	return r.join(head, is)
}

// readDecision reads the decision, and retries for a time if the journal does not answer.
func (r *run) readDecision(ctx context.Context) (head driver.Head, is machine, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.options.Timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		head, is, err = r.engine.read(ctx, "run transaction", r.id)
		kind := interlock.Kind(err)
		if err == nil || kind == interlock.Definite || kind == interlock.Bug || !backoff.Sleep(ctx, r.wait(err, attempt)) {
			return head, is, err
		}
	}
}

// release cancels what this Run may hold and the decision does not cover; no other process would. It
// tries for a limited time. The rest is released when a participant asks for the decision.
func (r *run) release(ctx context.Context, is *machine) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.options.Timeout)
	defer cancel()
	var work sync.WaitGroup
	for _, t := range r.tries {
		if b := is.find(t.branch); t.refused || b != nil && b.fate != refused {
			continue // nothing is held, or the coordinator releases it
		}
		work.Go(func() {
			for attempt := 1; attempt <= r.engine.options.Retry.Attempts; attempt++ {
				err := r.cancel(ctx, t, attempt)
				if err == nil || !backoff.Sleep(ctx, r.wait(err, attempt)) {
					return
				}
			}
		})
	}
	work.Wait()
}

func (r *run) cancel(ctx context.Context, t try, attempt int) error {
	h := r.engine.handles[t.resource]
	_, err := r.call(ctx, t, branch.Cancel, attempt, func(ctx context.Context) ([]byte, error) {
		return nil, h.cancel(ctx, t.request, t.hold)
	})
	return err
}

// wait returns the pause after a failed call.
func (r *run) wait(err error, attempts int) time.Duration {
	class, ongoing := branch.ClassOf(err)
	return r.engine.options.Retry.delay(class, ongoing, attempts, r.engine.coordinator.Random())
}
