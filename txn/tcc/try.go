package tcc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// try tries a branch until it holds, or is given up. The outcome is in t.
func (r *run) try(ctx context.Context, t *try) {
	h, policy := r.engine.handles[t.resource], r.engine.options.Retry
	var so trial
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			t.refused, t.cause = so.over() == notHeld, context.Cause(ctx)
			return
		}
		hold, err := r.call(ctx, *t, branch.Try, attempt, func(ctx context.Context) ([]byte, error) {
			return h.try(ctx, t.request, r.until())
		})
		if err == nil && r.log == nil {
			err = fitsWith(t.request, hold)
		}
		if err == nil {
			t.hold = hold
			return
		}
		class, _ := branch.ClassOf(err)
		if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			class = branch.ClassUnknown // the class in the cause is that of another branch
		}
		v, wait := so.judge(policy, class), r.wait(err, attempt)
		if v != again {
			t.refused, t.cause, wait = v == notHeld, err, 0
		}
		r.engine.tried(r.id, r.kind, observe.TCCTried{Branch: t.branch, Operation: string(branch.Try), Attempt: attempt, Err: err, Again: wait})
		if v != again {
			return
		}
		sleep(ctx, wait)
	}
}

// call makes one call of this Run, bounded in time. A panic is an Unknown error.
func (r *run) call(ctx context.Context, t try, op branch.Operation, attempt int, do func(ctx context.Context) ([]byte, error)) (hold []byte, err error) {
	timeout := r.engine.options.Timeout
	now := r.engine.coordinator.Now()
	c := branch.Call{Transaction: r.id, Branch: t.branch, Operation: op, Attempt: attempt,
		Begun: r.began.Truncate(time.Millisecond), Deadline: now.Add(timeout)}
	if op == branch.Try { // nobody waits for it beyond
		c.Until = r.until().Truncate(time.Millisecond)
		if limit := r.began.Add(r.limit()); limit.Before(c.Deadline) {
			c.Deadline = limit
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the timeout of branch %q has passed: %w", t.branch, context.DeadlineExceeded))
	defer cancel()
	err = coordinator.CatchPanic(branch.With(ctx, c), func(ctx context.Context) (err error) {
		hold, err = do(ctx)
		return err
	})
	return hold, err
}

// tried tells of a call that did not succeed.
func (m *Engine) tried(id, kind string, e observe.TCCTried) {
	if f := m.options.Hooks.Tried; f != nil {
		e.Transaction, e.Type = id, name(kind)
		f(e)
	}
}
