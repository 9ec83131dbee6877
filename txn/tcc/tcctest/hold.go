package tcctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

var (
	errBehind    = errors.New("it was cancelled before")
	errLate      = errors.New("the time of the hold is over")
	errNotHeld   = errors.New("it is not held")
	errConfirmed = errors.New("it is confirmed")
)

// Hold runs take once for the branch of the call that ctx was made for, in a try: a
// repetition has the first one's hold, or its [branch.Fail], and behind its cancellation
// the call is refused with one, and so it is if the time is over. If take returns an
// error nothing of what it did to the values stays. It may not block, nor use the world
// but by its argument.
func Hold[H any](ctx context.Context, w *World, until time.Time, take func(v Values) (H, error)) (h H, err error) {
	o, err := called(ctx, branch.Try)
	if err != nil {
		return h, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.holds[o]; before != nil {
		h, _ = before.is.(H)
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
		w.keep(o, &hold{state: held, until: until, is: h})
	case class == branch.ClassFail:
		w.keep(o, &hold{state: refusal, err: err})
	}
	return h, err
}

// answer is that of a repeated try.
func (h *hold) answer() error {
	if h.state == cancelled {
		return branch.Fail(errBehind)
	}
	return h.err
}

// Confirm runs sell once for the branch of the call that ctx was made for, which has to
// hold: otherwise it is a [branch.Fail]. If sell returns an error nothing of what it did
// stays, and it can be called again. It may not block, nor use the world but by its
// argument.
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

// Cancel runs back once for the branch of the call that ctx was made for, if it holds;
// from then on its try is refused. What is confirmed is refused with a [branch.Fail]. If
// back returns an error nothing of what it did stays, and it can be called again. It may
// not block, nor use the world but by its argument.
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

// Sweep asks about each hold whose time is over, in the order of their tries, and has
// those cancelled that will not be confirmed, for [Scene.Sweep]: the context of cancel is
// that of a call of their branch, as a resource's Cancel has it. It stops at the first
// error.
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

// settle ends a hold, with what that does to the values.
func (w *World) settle(o owner, state string, do func(v Values) error) error {
	values := w.draft()
	if err := do(values); err != nil {
		return err
	}
	w.values, w.holds[o].state = values, state
	return nil
}

// keep remembers the outcome of a branch.
func (w *World) keep(o owner, h *hold) {
	if w.holds == nil {
		w.holds = map[owner]*hold{}
	}
	if w.holds[o] == nil {
		w.order = append(w.order, o)
	}
	w.holds[o] = h
}

// called is whose hold the call is about, if it is of the operation.
func called(ctx context.Context, want branch.Operation) (owner, error) {
	c := branch.From(ctx)
	if c.Operation == want {
		return owner{c.Transaction, c.Branch}, nil
	}
	return owner{}, &interlock.Error{Op: string(want), Name: c.Branch, Kind: interlock.Bug,
		Err: fmt.Errorf("the context is that of a %q, and has to be that of a %q of a transaction", c.Operation, want)}
}
