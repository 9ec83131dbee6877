package saga

import (
	"context"
	"fmt"
	"iter"
	"time"

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
