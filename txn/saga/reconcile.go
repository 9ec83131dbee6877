package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Reconcile iterates over the sagas that ended at or after a time of the store's clock, in the
// order of their ids. It calls the checks of their steps: effects of succeeded sagas must be
// present, and those of undone or rejected steps absent. Steps with [Action.Repair] are repaired
// and checked again. It yields steps that are wrong, were repaired, or could not be checked. A
// saga that cannot be read, or has no definition here, is yielded with its id and an error. An
// error without an id ends the iteration. Steps that an operator skipped or closed are not
// checked.
func (e *Engine) Reconcile(ctx context.Context, since time.Time) iter.Seq2[Finding, error] {
	return records.Reconcile(ctx, e.coordinator.Journal(), since, e.reconcile)
}

func (e *Engine) reconcile(ctx context.Context, t coordinator.Transaction[machine]) (findings []Finding, err error) {
	id, m := t.Head.Transaction, t.State
	p, ok := e.plans[nameOf(t.Head.Type)]
	if !ok {
		return nil, &MismatchError{ID: id, Problem: fmt.Sprintf("the engine has no definition %q: add it", nameOf(t.Head.Type))}
	}
	r := reconciler{plan: p, m: m, call: branch.Call{Transaction: id, Attempt: 1, Begun: t.Entries[0].Written.Truncate(time.Millisecond)}}
	listed := p.listed(m.input)
	for i := range m.steps {
		sent := &m.steps[i]
		s, want := p.stepOf(listed, sent), m.wanted(sent)
		if s == nil || s.truth == nil || want == EffectUnknown {
			continue
		}
		f := Finding{Type: p.name, Step: sent.key, Want: want, Got: EffectUnknown}
		if r.settle(ctx, s, sent, &f); f.Err != nil || f.Got != want || f.Repaired {
			findings = append(findings, f)
		}
	}
	return findings, nil
}

// wanted returns the effect of a step that an ended saga requires, or EffectUnknown.
func (m *machine) wanted(p *progress) Effect {
	switch {
	case m.state == Succeeded && p.fate == done:
		return Present
	case m.state == Compensated && (p.fate == undone || p.fate == refused):
		return Absent
	}
	return EffectUnknown
}

// stepOf returns the step of the definition that was sent: that of the saga's list, else
// that of the known steps, or nil.
func (p plan) stepOf(listed []step, sent *progress) *step {
	for i := range listed {
		if listed[i].key == sent.key {
			return &listed[i]
		}
	}
	for i := range p.known {
		if s := &p.known[i]; s.key == sent.of || sent.undo != "" && s.undo == sent.undo {
			return s
		}
	}
	return nil
}

// reconciler checks and repairs the steps of a saga.
type reconciler struct {
	plan plan
	m    machine
	call branch.Call
}

// settle checks the effect of a step, and repairs it if that is allowed.
func (r reconciler) settle(ctx context.Context, s *step, sent *progress, f *Finding) {
	ask := func(ctx context.Context) (err error) {
		f.Got, err = s.truth(ctx, r.m.inputOf(sent), sent.output)
		f.Got = cmp.Or(f.Got, EffectUnknown)
		return err
	}
	fix := func(ctx context.Context) error {
		if f.Want == Absent {
			return s.back(ctx, r.m.inputOf(sent), sent.output)
		}
		_, err := s.act(ctx, r.m.inputOf(sent))
		return err
	}
	f.Err = r.make(ctx, s, sent, f.Want, ask)
	if f.Err != nil || f.Got == EffectUnknown || f.Got == f.Want || !s.repair || f.Want == Absent && s.back == nil || f.Want == Present && s.act == nil {
		return
	}
	if f.Err = r.make(ctx, s, sent, f.Want, fix); f.Err == nil {
		f.Err = r.make(ctx, s, sent, f.Want, ask)
	}
	f.Repaired = f.Err == nil && f.Got == f.Want
}

// make makes a call to the target with the key of the step or its undo.
func (r reconciler) make(ctx context.Context, s *step, sent *progress, want Effect, do func(context.Context) error) error {
	c := r.call
	c.Branch, c.Step, c.Operation = sent.of, sent.at, branch.Do
	if want == Absent {
		c.Operation = branch.Undo
	}
	ctx, end := coordinator.WithTimeout(ctx, s.timeout)
	defer end()
	c.Deadline, _ = ctx.Deadline()
	return coordinator.Call(with(branch.With(ctx, c), Call{Type: r.plan.name, Outputs: r.m.outputs(), Input: r.m.input, Edited: sent.edited}), do)
}

// reconciles returns the reconciler of sagas. It runs once an hour if any step has a check.
func (e *Engine) reconciles() coordinator.Reconciler {
	hooks := e.options.Hooks
	r := coordinator.Reconciler{Protocol: protocol, Every: -1, Find: e.Reconcile, Done: hooks.Reconciled, Found: func(f Finding) {
		coordinator.Emit(hooks.Mismatched, observe.SagaMismatched{Saga: f.ID, Type: f.Type, Step: f.Step, Want: string(f.Want), Got: string(f.Got), Repaired: f.Repaired, Err: f.Err})
	}}
	for _, p := range e.plans {
		if slices.ContainsFunc(p.known, func(s step) bool { return s.truth != nil }) {
			r.Every = time.Hour
		}
	}
	return r
}

// Effect is a target's answer about the effect of a step; see [coordinator.Effect].
type Effect = coordinator.Effect

// The effects.
const (
	EffectUnknown        = coordinator.EffectUnknown // the target does not know; empty means the same
	Present       Effect = "present"                 // the effect is there
	Absent        Effect = "absent"                  // there is no effect
)

// Check sets the function by which [Engine.Reconcile] reads whether the step has had its effect.
// It gets the output of the step, or nil if the step was not done; [From] returns the saga and
// the step. It must change nothing.
func (a Action[I, O]) Check(check func(ctx context.Context, input I, output *O) (Effect, error)) Action[I, O] {
	if a.s.truth = nil; check == nil {
		return a
	}
	a.s.truth = func(ctx context.Context, text, out json.RawMessage) (Effect, error) {
		input, output, err := arguments[I, O](text, out)
		if err != nil {
			return EffectUnknown, fmt.Errorf("read the arguments of the check of step %q: %w", a.s.key, err)
		}
		return check(ctx, input, output)
	}
	return a
}

// Repair allows [Engine.Reconcile] to repair a wrong effect that [Action.Check] finds, by one
// more call of the action or undo under its key.
func (a Action[I, O]) Repair() Action[I, O] { a.s.repair = true; return a }

// Finding is a step whose effect does not match the end of its saga; see
// [coordinator.Finding].
type Finding = coordinator.Finding
