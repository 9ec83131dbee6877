package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Reconcile goes through the sagas that have ended at a time of the store's clock or
// after it, in the order of their ids, and asks the checks of their steps: whether
// what has succeeded is there, and what was undone or refused is not. What is declared
// to be repairable is repaired and checked again. What is wrong, or was, or could not be
// found out, is reported. A saga that cannot be read or whose definition is not here comes
// with its id and an error; an error without an id ends it. What an operator has
// skipped or closed is not asked about.
func (e *Engine) Reconcile(ctx context.Context, since time.Time) iter.Seq2[Finding, error] {
	return func(yield func(Finding, error) bool) {
		for t, err := range records.Ended(ctx, e.coordinator.Journal(), since) {
			id := t.Head.Transaction
			if err != nil && id == "" {
				yield(Finding{}, err) // it is the last
				return
			}
			var findings []Finding
			if err == nil {
				findings, err = e.reconcile(ctx, t)
			}
			if err != nil && !yield(Finding{ID: id, Type: nameOf(t.Head.Type)}, err) {
				return
			}
			for _, f := range findings {
				if !yield(f, nil) {
					return
				}
			}
		}
	}
}

func (e *Engine) reconcile(ctx context.Context, t coordinator.Transaction[machine]) (findings []Finding, err error) {
	id, m := t.Head.Transaction, t.State
	p, ok := e.plans[nameOf(t.Head.Type)]
	if !ok {
		return nil, &MismatchError{ID: id, Problem: fmt.Sprintf("the engine was built without its definition %q: add it", nameOf(t.Head.Type))}
	}
	r := reconciler{plan: p, m: m, call: branch.Call{Transaction: id, Attempt: 1, Begun: t.Entries[0].Written.Truncate(time.Millisecond)}}
	listed := p.listed(m.input)
	for i := range m.steps {
		sent := &m.steps[i]
		s, want := p.stepOf(listed, sent), m.wanted(sent)
		if s == nil || s.truth == nil || want == Unsure {
			continue
		}
		f := Finding{ID: id, Type: p.name, State: m.state, Step: sent.key, Want: want}
		if r.settle(ctx, s, sent, &f); f.Err != nil || f.Got != want || f.Repaired {
			findings = append(findings, f)
		}
	}
	return findings, nil
}

// wanted is what an ended saga says of the effect of a step; Unsure if nothing.
func (m *machine) wanted(p *progress) Truth {
	switch {
	case m.state == Succeeded && p.fate == done:
		return Present
	case m.state == Compensated && (p.fate == undone || p.fate == refused):
		return Absent
	}
	return Unsure
}

// stepOf is the step of a definition that was sent, as the saga's list has it or else
// as it is known; nil if there is none such.
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

// settle finds out what is so, and repairs it if it may.
func (r reconciler) settle(ctx context.Context, s *step, sent *progress, f *Finding) {
	ask := func(ctx context.Context) (err error) {
		f.Got, err = s.truth(ctx, r.m.inputOf(sent), sent.output)
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
	if f.Err != nil || f.Got == Unsure || f.Got == f.Want || !s.repair || f.Want == Absent && s.back == nil || f.Want == Present && s.act == nil {
		return
	}
	if f.Err = r.make(ctx, s, sent, f.Want, fix); f.Err == nil {
		f.Err = r.make(ctx, s, sent, f.Want, ask)
	}
	f.Repaired = f.Err == nil && f.Got == f.Want
}

// make calls what a target is to be asked, with the key that the step or its undo had.
func (r reconciler) make(ctx context.Context, s *step, sent *progress, want Truth, do func(context.Context) error) error {
	c := r.call
	c.Branch, c.Step, c.Operation = sent.of, sent.at, branch.Do
	if want == Absent {
		c.Operation = branch.Undo
	}
	ctx, end := context.WithTimeout(ctx, s.timeout)
	defer end()
	c.Deadline, _ = ctx.Deadline()
	return coordinator.Guarded(with(branch.With(ctx, c), Call{Type: r.plan.name, Outputs: r.m.outputs(), Input: r.m.input, Edited: sent.edited}), do)
}

// DefaultReconcile is how often sagas are reconciled if a step has a Check.
const DefaultReconcile = time.Hour

// reconciles has the coordinator reconcile in the background.
func (e *Engine) reconciles() error {
	every := e.options.Reconcile
	if every == 0 {
		every = DefaultReconcile
	}
	if !e.checks() {
		every = -1
	}
	return e.coordinator.Reconciles(protocol, every, e.reconcileAll)
}

// checks reports whether any step can be asked.
func (e *Engine) checks() bool {
	for _, p := range e.plans {
		for i := range p.known {
			if p.known[i].truth != nil {
				return true
			}
		}
	}
	return false
}

// reconcileAll is Reconcile whose findings go to the hooks.
func (e *Engine) reconcileAll(ctx context.Context, since time.Time) (r coordinator.Reconciliation, err error) {
	began, hooks := e.coordinator.Now(), e.options.Hooks
	for f, problem := range e.Reconcile(ctx, since) {
		if problem != nil && f.ID == "" {
			err = problem
			break
		}
		f.Err = errors.Join(problem, f.Err)
		if hooks.Mismatched != nil {
			hooks.Mismatched(observe.SagaMismatched{Saga: f.ID, Type: f.Type, Step: f.Step, Want: f.Want.String(), Got: f.Got.String(), Repaired: f.Repaired, Err: f.Err})
		}
		found := coordinator.Finding{ID: f.ID, Type: f.Type, Step: f.Step, Want: f.Want.String(), Got: f.Got.String(), Repaired: f.Repaired}
		if f.Err != nil {
			found.Error = f.Err.Error()
		}
		r.Add(found)
	}
	if hooks.Reconciled != nil && ctx.Err() == nil {
		hooks.Reconciled(observe.Reconciled{Since: since, Wrong: r.Wrong, Repaired: r.Repaired, Unknown: r.Unknown, Took: e.coordinator.Now().Sub(began), Err: err})
	}
	return r, err
}

// Truth is what a target says of a step's effect.
type Truth int

// The truths.
const (
	Unsure  Truth = iota // it cannot be said
	Present              // it is there
	Absent               // it is not
)

// String is the truth in lower case.
func (t Truth) String() string {
	switch t {
	case Present:
		return "present"
	case Absent:
		return "absent"
	}
	return "unsure"
}

// Check says how to find out whether the step's effect is there, for
// [Engine.Reconcile]. It is called with the output of the step, or nil if it was not
// done; [From] tells the saga and the step. It changes nothing.
func (a Action[I, O]) Check(check func(ctx context.Context, input I, output *O) (Truth, error)) Action[I, O] {
	if a.s.truth = nil; check == nil {
		return a
	}
	a.s.truth = func(ctx context.Context, text, out json.RawMessage) (Truth, error) {
		var input I
		var output *O
		err := json.Unmarshal(text, &input)
		if err == nil && out != nil {
			output = new(O)
			err = json.Unmarshal(out, output)
		}
		if err != nil {
			return Unsure, fmt.Errorf("read what the check of step %q needs: %w", a.s.key, err)
		}
		return check(ctx, input, output)
	}
	return a
}

// Repair declares that what a [Action.Check] finds to be wrong may be fixed by
// calling the action, or the undo, once more under its key.
func (a Action[I, O]) Repair() Action[I, O] { a.s.repair = true; return a }

// Finding is a step whose effect is not what its saga has ended with.
type Finding struct {
	ID, Type string
	State    State  // in which the saga has ended
	Step     string // its key
	Want     Truth  // what the journal says: Present, or Absent
	Got      Truth  // what the target says, after a repair if there was one
	Repaired bool   // it was fixed, and Got is what is wanted
	Err      error  // of the check or of the repair; nil if they had none
}
