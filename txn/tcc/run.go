package tcc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// MaxBranches is the maximum number of branches of a transaction.
const MaxBranches = driver.MaxRecords - 1

// Run tries all branches at once. It decides to confirm if all tries succeed, and to cancel
// otherwise. It returns once the decision is durable; the owner of the transaction's shard then
// executes it, see [Engine.Wait]. kind is the type of the transaction for operators, of 1 to 250
// bytes; id has 1 to driver.MaxTransaction bytes. If ctx ends, Run decides to cancel.
//
// The error is nil if the decision is to confirm. Otherwise it is:
//
//   - a [*CancelledError]: the decision is to cancel; the cause is the error of the branch, or that
//     of ctx
//   - a [*MismatchError]: there is another transaction of that id. Holds of this Run are cancelled,
//     except those of branches whose name the other transaction has too: a hold of another resource
//     under such a name waits for an operator
//   - a Retryable error: the journal could not be read, and nothing was tried
//   - an Uncertain error: the decision is unknown; repeating returns it, or decides
//   - a Bug: nothing was tried
//
// If the transaction of that id is already decided, Run tries nothing and returns the decision. If
// it was submitted, Run waits for its decision. Concurrent Runs of one id get the same decision.
func (m *Engine) Run(ctx context.Context, kind, id string, branches ...Branch) (Outcome, error) {
	r := &run{engine: m, id: id, kind: protocol + ":" + kind, began: m.coordinator.Now()}
	if err := r.prepare(kind, branches); err != nil {
		return Outcome{}, err
	}
	o, err := r.attach(ctx)
	if !errors.Is(err, ErrNone) {
		return o, failure.Uncommitted(err)
	}
	return r.conclude(ctx)
}

// conclude tries all branches, and decides.
func (r *run) conclude(ctx context.Context) (Outcome, error) {
	if cause := r.tryAll(ctx); cause != nil {
		return r.decide(ctx, Cancel, cause)
	}
	return r.decide(ctx, Confirm, nil)
}

// run is one Run until its decision.
type run struct {
	engine   *Engine
	id, kind string
	began    time.Time
	tries    []try
	log      *journal.Log    // of Submit: the opened transaction
	opening  []journal.Entry // its records
}

// prepare checks the branches, and prepares their tries.
func (r *run) prepare(kind string, branches []Branch) error {
	const op = "run transaction"
	if err := errors.Join(driver.CheckName(op, "a transaction", r.id, driver.MaxTransaction), driver.CheckName(op, "a type", kind, 250)); err != nil {
		return err
	}
	if len(branches) == 0 || len(branches) > MaxBranches {
		return failure.Bug(op, r.id, "it has %d branches; 1 to %d are allowed", len(branches), MaxBranches)
	}
	seen := map[string]bool{}
	for _, b := range branches {
		if b == nil {
			return failure.Bug(op, r.id, "a branch is nil")
		}
		t, err := b.try()
		if err != nil {
			return bug(op, r.id, err)
		}
		if err := driver.CheckName(op, "a branch", t.branch, maxBranch); err != nil {
			return err
		}
		if seen[t.branch] {
			return failure.Bug(op, r.id, "there are two branches named %q; give one of them another name with As", t.branch)
		}
		if _, ok := r.engine.handles[t.resource]; !ok {
			return failure.Bug(op, r.id, "the engine has no resource %q of branch %q", t.resource, t.branch)
		}
		seen[t.branch] = true
		r.tries = append(r.tries, t)
	}
	return nil
}

// until returns when holds are to ask for the decision.
func (r *run) until() time.Time { return r.began.Add(r.engine.options.Hold).Round(0) }

// limit returns how long branches may be tried, from the start of the Run.
func (r *run) limit() time.Duration { return r.engine.options.Hold - r.engine.options.Margin }

// tryAll tries all branches until all have a hold or one fails. It returns why the transaction cannot be
// confirmed, or nil.
func (r *run) tryAll(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, r.limit(), errLate)
	defer cancel()
	var work sync.WaitGroup
	for i := range r.tries {
		t := &r.tries[i]
		t.cause = failure.ErrNoReturn
		work.Go(func() {
			defer func() {
				if t.cause != nil {
					stop(fmt.Errorf("branch %q: %w", t.branch, t.cause))
				}
			}()
			r.try(ctx, t)
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.checkTime()
}

// checkTime returns an error if the time to confirm is over, by the monotonic clock or by the wall clock,
// which participants compare with theirs.
func (r *run) checkTime() error {
	now := r.engine.coordinator.Now()
	if now.Sub(r.began) >= r.limit() || !now.Round(0).Before(r.until().Add(-r.engine.options.Margin)) {
		return errLate
	}
	return nil
}

// decide records the decision, unless there is one. If the outcome of recording a confirmation is
// unknown, it tries to record a cancellation: only the first decision counts.
func (r *run) decide(ctx context.Context, d Decision, cause error) (Outcome, error) {
	m, reason := r.engine, ""
	if cause != nil {
		reason = truncated(cause)
	}
	bound := m.options.Timeout
	if d == Confirm {
		bound = m.options.Margin / 2
	}
	bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer stop()
	entries, err := r.append(bounded, d, reason)
	switch {
	case err == nil:
		m.decided(r.id, r.kind, d, reason)
		return r.outcome(entries, cause)
	case errors.Is(err, journal.ErrExists), errors.Is(err, journal.ErrConflict):
		return r.follow(ctx)
	case d == Confirm:
		return r.decide(ctx, Cancel, err)
	}
	return Outcome{}, &interlock.Error{Op: "run transaction", Name: r.id, Kind: interlock.Uncertain, Err: errors.Join(err, cause)}
}

// append records a decision, and returns all records of the transaction.
func (r *run) append(ctx context.Context, d Decision, reason string) ([]journal.Entry, error) {
	c := r.engine.coordinator
	if r.log == nil {
		entries := decided(d, reason, r.tries)
		return entries, c.Begin(ctx, r.id, r.kind, entries...)
	}
	entries := concluded(d, reason, r.tries)
	err := r.log.Append(ctx, c.Now(), entries...)
	if err == nil {
		c.Nudge(r.id)
	}
	return slices.Concat(r.opening, entries), err
}

// outcome returns the outcome of a decision of this Run.
func (r *run) outcome(entries []journal.Entry, cause error) (Outcome, error) {
	recorded, err := replay(entries)
	if err != nil {
		return Outcome{}, bug("run transaction", r.id, err)
	}
	o := recorded.outcome(driver.Head{Transaction: r.id, Type: r.kind})
	if recorded.decision == Cancel {
		return o, &CancelledError{ID: r.id, Reason: o.Reason, Cause: cause}
	}
	return o, nil
}

// try tries a branch until it holds or is given up. t receives the result.
func (r *run) try(ctx context.Context, t *try) {
	h, policy := r.engine.handles[t.resource], r.engine.options.Retry
	var so tryAttempts
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			t.refused, t.cause = so.giveUp() == notHeld, context.Cause(ctx)
			return
		}
		hold, err := r.call(ctx, *t, branch.Try, attempt, func(ctx context.Context) ([]byte, error) {
			return h.try(ctx, t.request, r.until())
		})
		if err == nil && r.log == nil {
			err = fitsWith(t.request, hold)
		}
		if err == nil {
			t.hold, t.cause = hold, nil
			return
		}
		class, _ := branch.ClassOf(err)
		if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			class = branch.ClassUnknown // the class in the cause is that of another branch
		}
		v, wait := so.judge(policy, class), r.wait(err, attempt)
		if end, _ := ctx.Deadline(); v == again && wait >= time.Until(end) { // the other branches need not hold until then
			v = so.giveUp()
		}
		if v != again {
			t.refused, t.cause, wait = v == notHeld, err, 0
		}
		r.engine.tried(r.id, r.kind, observe.TCCTried{Branch: t.branch, Operation: string(branch.Try), Attempt: attempt, Err: err, Again: wait})
		if v != again {
			return
		}
		backoff.Sleep(ctx, wait)
	}
}

// call makes one call of this Run, within a bound. A panic is an Unknown error.
func (r *run) call(ctx context.Context, t try, op branch.Operation, attempt int, do func(ctx context.Context) ([]byte, error)) (hold []byte, err error) {
	timeout := r.engine.options.Timeout
	now := r.engine.coordinator.Now()
	c := branch.Call{Transaction: r.id, Branch: t.branch, Operation: op, Attempt: attempt,
		Begun: r.began.Truncate(time.Millisecond), Deadline: now.Add(timeout)}
	if op == branch.Try { // its result is not needed later
		c.Until = r.until().Truncate(time.Millisecond)
		if limit := r.began.Add(r.limit()); limit.Before(c.Deadline) {
			c.Deadline = limit
		}
	}
	ctx, cancel := coordinator.WithTimeout(ctx, timeout)
	defer cancel()
	err = coordinator.Call(branch.With(ctx, c), func(ctx context.Context) (err error) {
		hold, err = do(ctx)
		return err
	})
	return hold, err
}

// tried reports a failed call.
func (m *Engine) tried(id, kind string, e observe.TCCTried) {
	e.Transaction, e.Type = id, name(kind)
	coordinator.Emit(m.options.Hooks.Tried, e)
}

// attach returns the existing decision, if it is on the same transaction. It waits for the decision of a
// submitted transaction.
func (r *run) attach(ctx context.Context) (Outcome, error) {
	const op = "run transaction"
	m := r.engine
	head, recorded, err := m.read(ctx, op, r.id)
	if err == nil {
		err = r.awaitDecision(ctx, &head, &recorded)
	}
	if err != nil {
		return Outcome{}, err
	}
	return r.join(head, recorded)
}

// awaitDecision waits for the decision of a submitted transaction, if it is the same one.
func (r *run) awaitDecision(ctx context.Context, head *driver.Head, recorded *machine) error {
	if recorded.state() != Trying || r.difference(*head, *recorded) != "" {
		return nil
	}
	return r.engine.coordinator.Await(ctx, r.id, func(ctx context.Context) (_ bool, err error) {
		*head, *recorded, err = r.engine.read(ctx, "run transaction", r.id)
		return recorded.state() != Trying, err
	})
}

func (r *run) join(head driver.Head, recorded machine) (Outcome, error) {
	if problem := r.difference(head, recorded); problem != "" {
		return Outcome{}, &MismatchError{ID: r.id, Problem: problem}
	}
	o := recorded.outcome(head)
	if recorded.decision == Cancel {
		return o, &CancelledError{ID: r.id, Reason: o.Reason}
	}
	return o, nil
}

// difference returns the difference from the transaction that was decided. A cancellation on request
// of a participant has no branches, and fits any transaction.
func (r *run) difference(head driver.Head, recorded machine) string {
	if len(recorded.members) == 0 {
		return ""
	}
	if head.Type != r.kind {
		return fmt.Sprintf("it was run as a %q, not as a %q: give this one another id", name(head.Type), name(r.kind))
	}
	for _, t := range r.tries {
		b := recorded.find(t.branch)
		if b == nil || b.resource != t.resource || !bytes.Equal(b.request, t.request) {
			return fmt.Sprintf("it was run without branch %q, or with another request for it: repeat a run with the same branches, or give this one another id", t.branch)
		}
	}
	if len(recorded.members) != len(r.tries) {
		return fmt.Sprintf("it was run with %d branches, not with %d: repeat a run with the same branches, or give this one another id", len(recorded.members), len(r.tries))
	}
	return ""
}

// follow adopts a decision that another process made during this Run, or is making after a Submit, and cancels
// what this Run holds beyond it.
func (r *run) follow(ctx context.Context) (Outcome, error) {
	clean := context.WithoutCancel(ctx)
	head, recorded, err := r.readDecision(clean)
	if err == nil {
		err = r.awaitDecision(ctx, &head, &recorded)
	}
	var other *MismatchError
	switch {
	case errors.As(err, &other): // of another protocol
		r.release(clean, &machine{})
		return Outcome{}, err
	case err != nil:
		return Outcome{}, &interlock.Error{Op: "run transaction", Name: r.id, Kind: interlock.Uncertain, Err: err}
	}
	r.release(clean, &recorded)
	return r.join(head, recorded)
}

// readDecision reads the decision, and retries for a time if the journal does not answer.
func (r *run) readDecision(ctx context.Context) (head driver.Head, recorded machine, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.options.Timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		head, recorded, err = r.engine.read(ctx, "run transaction", r.id)
		kind := interlock.Kind(err)
		if err == nil || kind == interlock.Definite || kind == interlock.Bug || !backoff.Sleep(ctx, r.wait(err, attempt)) {
			return head, recorded, err
		}
	}
}

// release cancels what this Run may hold and the decision does not cover; no other process would. It
// tries for a limited time. The rest is released when a participant asks for the decision.
func (r *run) release(ctx context.Context, recorded *machine) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.options.Timeout)
	defer cancel()
	var work sync.WaitGroup
	for _, t := range r.tries {
		if b := recorded.find(t.branch); t.refused || b != nil && b.fate != refused {
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
	class, after := branch.ClassOf(err)
	retry := r.engine.options.Retry
	return coordinator.Delay(retry.First, retry.Max, class, after, attempts, r.engine.coordinator.Random())
}
