package sagatest

import (
	"context"
	"encoding/json"

	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/saga"
)

// made is a call as an engine makes it.
type made = func(ctx context.Context) (json.RawMessage, error)

// around lets the mishaps of the plot befall the calls of an engine.
func (r *run) around(l *rehearsal.Life) saga.Interceptor {
	return func(ctx context.Context, call made) (json.RawMessage, error) {
		c := saga.From(ctx)
		step, undo := keyOf(c), c.Operation == branch.Undo
		if err := l.Pass(rehearsal.Point{Words: "before it called " + nameOf(step, undo), Name: step, Operation: string(c.Operation)}); err != nil {
			return nil, err
		}
		m := r.begin(ctx, step, undo, call)
		output, err := r.deliver(ctx, step, undo, call, m)
		if err := l.Pass(rehearsal.Point{Words: "before it heard the answer of " + nameOf(step, undo), Name: step, Operation: string(c.Operation)}); err != nil {
			return nil, err
		}
		return output, err
	}
}

// keyOf is the key of the step in its saga.
func keyOf(c saga.Call) string {
	if c.Step != "" {
		return c.Branch + "#" + c.Step
	}
	return c.Branch
}

func nameOf(step string, undo bool) string {
	if undo {
		return "the undo of " + step
	}
	return step
}

// begin counts a call, and returns its mishap.
func (r *run) begin(ctx context.Context, step string, undo bool, call made) (m mishap) {
	r.mu.Lock()
	if r.calls[step] == nil {
		r.calls[step] = map[bool]int{}
	}
	r.calls[step][undo]++
	r.last = step
	n := r.calls[step][undo]
	r.mu.Unlock()
	if r.fate != nil {
		m = r.fate(step, deed{undo, n})
	}
	if r.alone && step == r.step && !undo && n == 1 {
		r.before = r.see()
		r.action = func() { _, _ = rehearsal.Late(ctx, call) }
	}
	return m
}

// deliver makes a call as often as it arrives.
func (r *run) deliver(ctx context.Context, step string, undo bool, call made, m mishap) (output json.RawMessage, err error) {
	if !m.absent {
		output, err = rehearsal.Guarded(ctx, call)
		r.answered(step, undo, err)
		if m.twice {
			_, again := rehearsal.Guarded(ctx, call)
			r.answered(step, undo, again)
		}
	}
	if r.alone && step == r.step {
		r.after = r.see()
		if m.late && err == nil {
			r.action()
			r.late = r.see()
		}
	}
	if m.answer != nil {
		return nil, m.answer
	}
	return output, err
}

func (r *run) answered(step string, undo bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, answer{step, undo, err})
}
