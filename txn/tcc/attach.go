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
	"github.com/interlock-dev/interlock/txn/branch"
)

// attach is the decision that there is, if it is one on the same transaction. It waits
// for that of a transaction that was submitted.
func (r *run) attach(ctx context.Context) (Outcome, error) {
	const op = "run transaction"
	m := r.engine
	head, is, err := m.read(ctx, op, r.id)
	if err == nil && is.state() == Trying && r.differs(head, is) == "" {
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
	if problem := r.differs(head, is); problem != "" {
		return Outcome{}, &MismatchError{ID: r.id, Problem: problem}
	}
	o := is.outcome(head)
	if is.decision == Cancel {
		return o, &CancelledError{ID: r.id, Reason: o.Reason}
	}
	return o, nil
}

// differs says what is not as it was when the transaction was decided. What was
// cancelled because a participant asked has no branches, and could have been any.
func (r *run) differs(head driver.Head, is machine) string {
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

// follow takes the decision that somebody else has made while this Run tried, and
// cancels what it holds for nothing.
func (r *run) follow(ctx context.Context) (Outcome, error) {
	head, is, err := r.found(ctx)
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

// found reads what was decided, and asks again for a while if the journal does not
// answer.
func (r *run) found(ctx context.Context) (head driver.Head, is machine, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.options.Timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		head, is, err = r.engine.read(ctx, "run transaction", r.id)
		kind := interlock.Kind(err)
		if err == nil || kind == interlock.Definite || kind == interlock.Bug || !sleep(ctx, r.wait(err, attempt)) {
			return head, is, err
		}
	}
}

// release cancels what may be held here and is not of the transaction that was decided:
// nobody else would. It tries for a while; what it leaves is there until somebody asks
// for the decision on it.
func (r *run) release(ctx context.Context, is *machine) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.options.Timeout)
	defer cancel()
	var work sync.WaitGroup
	for _, t := range r.tries {
		if b := is.find(t.branch); t.refused || b != nil && b.fate != refused {
			continue // nothing is held, or it is the coordinator's
		}
		work.Go(func() {
			for attempt := 1; attempt <= r.engine.options.Retry.Attempts; attempt++ {
				err := r.cancel(ctx, t, attempt)
				if err == nil || !sleep(ctx, r.wait(err, attempt)) {
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

// wait is the pause after a call that failed.
func (r *run) wait(err error, attempts int) time.Duration {
	class, ongoing := branch.ClassOf(err)
	return r.engine.options.Retry.delay(class, ongoing, attempts, r.engine.coordinator.Random())
}

// sleep is false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
