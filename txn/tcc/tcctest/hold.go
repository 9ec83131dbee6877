package tcctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

var (
	errBehind    = errors.New("it was cancelled before")
	errLate      = errors.New("the time of the hold is over")
	errNotHeld   = errors.New("it is not held")
	errConfirmed = errors.New("it is confirmed")
)

// Hold runs take once for the branch of the call that ctx belongs to, in a try. A repeated call
// has the first one's hold or [branch.Fail]. A call after its cancellation, or after until, is
// refused with a Fail. If take returns an error its changes are discarded. take must not block,
// and must use the world by its argument only.
func Hold[H any](ctx context.Context, w *World, until time.Time, take func(v Values) (H, error)) (h H, err error) {
	o, err := called(ctx, branch.Try)
	if err != nil {
		return h, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.holds[o]; before != nil {
		h, _ = before.output.(H)
		return h, before.answer()
	}
	if !time.Now().Before(until) {
		w.keep(o, &hold{state: refusal, err: branch.Fail(errLate)})
		return h, branch.Fail(errLate)
	}
	values := w.draft()
	h, err = take(values)
	class, _ := branch.ClassOf(err)
	switch {
	case err == nil:
		w.values = values
		w.keep(o, &hold{state: held, until: until, output: h})
	case class == branch.ClassFail:
		w.keep(o, &hold{state: refusal, err: err})
	}
	return h, err
}

// answer returns the answer of a repeated try.
func (h *hold) answer() error {
	if h.state == cancelled {
		return branch.Fail(errBehind)
	}
	return h.err
}

// Confirm runs sell once for the branch of the call that ctx belongs to. Without a hold the error
// is a [branch.Fail]. If sell returns an error its changes are discarded, and it can be called
// again. sell must not block, and must use the world by its argument only.
func (w *World) Confirm(ctx context.Context, sell func(v Values) error) error {
	o, err := called(ctx, branch.Confirm)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch h := w.holds[o]; {
	case h == nil || h.state == refusal || h.state == cancelled:
		return branch.Fail(errNotHeld)
	case h.state == confirmed:
		return nil
	}
	return w.settle(o, confirmed, sell)
}

// Cancel runs back once for the branch of the call that ctx belongs to, if it has a hold; later
// tries are refused. For a confirmed branch the error is a [branch.Fail]. If back returns an error
// its changes are discarded, and it can be called again. back must not block, and must use the
// world by its argument only.
func (w *World) Cancel(ctx context.Context, back func(v Values) error) error {
	o, err := called(ctx, branch.Cancel)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch h := w.holds[o]; {
	case h == nil || h.state == refusal:
		w.keep(o, &hold{state: cancelled})
		return nil
	case h.state == cancelled:
		return nil
	case h.state == confirmed:
		return branch.Fail(errConfirmed)
	}
	return w.settle(o, cancelled, back)
}

// Sweep asks for the decision on each expired hold, in the order of their tries, and cancels those
// that will not be confirmed, for [Scene.Sweep]. cancel gets the context of a Cancel of the branch.
// Sweep stops at the first error.
func (w *World) Sweep(ctx context.Context, ask tcc.Ask, cancel func(ctx context.Context) error) error {
	for _, o := range w.overdue() {
		decision, err := ask(ctx, o.transaction, o.branch)
		if err == nil && decision == tcc.Cancel {
			err = cancel(branch.With(ctx, branch.Call{Transaction: o.transaction, Branch: o.branch, Operation: branch.Cancel, Attempt: 1}))
		}
		if err != nil {
			return fmt.Errorf("sweep branch %q of %q: %w", o.branch, o.transaction, err)
		}
	}
	return nil
}

func (w *World) overdue() []owner {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(w.order), func(o owner) bool {
		return w.holds[o].state != held || now.Before(w.holds[o].until)
	})
}

// settle ends a hold, and changes the values by do.
func (w *World) settle(o owner, state string, do func(v Values) error) error {
	values := w.draft()
	if err := do(values); err != nil {
		return err
	}
	w.values, w.holds[o].state = values, state
	return nil
}

// keep stores the outcome of a branch.
func (w *World) keep(o owner, h *hold) {
	if w.holds == nil {
		w.holds = map[owner]*hold{}
	}
	if w.holds[o] == nil {
		w.order = append(w.order, o)
	}
	w.holds[o] = h
}

// called returns the owner of a call's hold, or an error if the call has another operation.
func called(ctx context.Context, want branch.Operation) (owner, error) {
	c := branch.From(ctx)
	if c.Operation == want {
		return owner{c.Transaction, c.Branch}, nil
	}
	return owner{}, &interlock.Error{Op: string(want), Name: c.Branch, Kind: interlock.Bug,
		Err: fmt.Errorf("the context is that of a %q, and that of a %q of a transaction is required", c.Operation, want)}
}

var errSilent = errors.New("tcctest: the coordinator cannot be asked")

// sweeps waits until the holds have expired, and sweeps them: first while the coordinator does not
// answer.
func (r *run) sweeps(ctx context.Context, m *tcc.Engine) {
	hold := r.Options.Hold
	if !pause(ctx, hold+hold/10) {
		return
	}
	before := r.See()
	_ = r.Sweep(ctx, func(context.Context, string, string) (tcc.Decision, error) { return "", errSilent })
	r.unchanged(before)
	const rounds = 3
	for range rounds {
		decision := tcc.Cancel
		r.sweeping = r.Sweep(ctx, func(ctx context.Context, id, branch string) (d tcc.Decision, err error) {
			d, err = m.Decide(ctx, id, branch)
			if d == tcc.Confirm {
				decision = d
			}
			return d, err
		})
		if r.LateConfirm || decision == tcc.Confirm {
			r.unchanged(before)
		}
		if !pause(ctx, hold/20) {
			return
		}
	}
}

// unchanged records unrequested changes of a sweep.
func (r *run) unchanged(before []string) {
	if r.freed == "" {
		r.freed = rehearsal.Diff(before, r.See())
	}
}

// pause waits, and returns false if ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
