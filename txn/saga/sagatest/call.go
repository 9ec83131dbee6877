package sagatest

import (
	"context"
	"encoding/json"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// made is a call as an engine makes it.
type made = func(ctx context.Context) (json.RawMessage, error)

// around lets the mishaps of the plot befall the calls of an engine.
func (r *run) around(l *rehearsal.Life) saga.Interceptor {
	return func(ctx context.Context, call made) (json.RawMessage, error) {
		c := saga.From(ctx)
		at := rehearsal.Point{Words: keyOf(c), Name: keyOf(c), Operation: c.Operation}
		if c.Operation == branch.Undo {
			at.Words = "the undo of " + at.Name
		}
		return rehearsal.Between(l, at, func() (json.RawMessage, error) { return r.call(ctx, at.Name, c.Operation, call) })
	}
}

// keyOf is the key of the step in its saga.
func keyOf(c saga.Call) string {
	if c.Step != "" {
		return c.Branch + "#" + c.Step
	}
	return c.Branch
}

// call makes a call as often as it arrives.
func (r *run) call(ctx context.Context, step string, o branch.Operation, call made) (output json.RawMessage, err error) {
	d, m := r.Begin(step, o)
	watched := r.Alone && step == r.Name
	if watched && d == (deed{Name: step, Operation: branch.Do, N: 1}) {
		r.Before = r.See()
		r.action = func() { _, _ = rehearsal.Late(ctx, call) }
	}
	output, err = rehearsal.Deliver(ctx, m, call, func(err error) { r.Answered(rehearsal.Answer{Name: step, Operation: o, Err: err}) })
	if watched {
		r.After = r.See()
		if m.Late && err == nil {
			r.action()
			r.Late = r.See()
		}
	}
	if m.Answer != nil {
		return nil, m.Answer
	}
	return output, err
}
