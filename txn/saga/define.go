package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A Definition is a saga whose input is an I: steps that follow each other. It is
// validated when an engine is built of it.
type Definition[I any] struct {
	plan plan
}

// plan is a definition without its type.
type plan struct {
	name    string
	steps   []step
	timeout time.Duration
}

// Defined is a [Definition] of any input.
type Defined interface{ defined() plan }

// Define makes a saga of a name that is unique in its engine, at most 250 bytes, of
// steps in their order.
func Define[I any](name string, steps ...StepOf[I]) Definition[I] {
	d := Definition[I]{plan{name: name}}
	for _, s := range steps {
		if s == nil {
			d.plan.steps = append(d.plan.steps, step{})
			continue
		}
		var none I
		d.plan.steps = append(d.plan.steps, s.of(none))
	}
	return d
}

// Timeout bounds a saga up to the moment when its pivot is sent, counted from its
// start by the clock of whoever starts it: after that time it is aborted. 0, as
// without it, is no bound.
func (d Definition[I]) Timeout(t time.Duration) Definition[I] { d.plan.timeout = t; return d }

func (d Definition[I]) defined() plan { return d.plan }

// Start begins a saga of this id (1 to 200 bytes) unless there is one, and returns
// as soon as that is durable; see [Engine.Wait]. If there is one it must be of this
// type and have this input, as JSON; else the error is an [ErrMismatch]. An
// Uncertain error means that it may have begun: starting it again converges.
func (d Definition[I]) Start(ctx context.Context, e *Engine, id string, input I) error {
	text, err := json.Marshal(input)
	if err != nil {
		return bug("start saga", id, fmt.Errorf("write its input: %w", err))
	}
	return e.start(ctx, d.plan.name, id, text)
}

// Do starts a saga and waits for its end. A second Do of the same id has the result
// of the first. The error is nil if the saga succeeded. When ctx ends the saga goes
// on, and the error is Uncertain.
func (d Definition[I]) Do(ctx context.Context, e *Engine, id string, input I) (Outcome, error) {
	if err := d.Start(ctx, e, id, input); err != nil {
		return Outcome{}, err
	}
	return e.Wait(ctx, id)
}

// longestName is the most bytes of a step's or an undo's name.
const longestName = 255

// check finds what is wrong with a definition.
func (p plan) check() error {
	problems := []error{p.named("", protocol+":"+p.name)} // as it stands in the journal
	if p.name == "" {
		problems = append(problems, p.named("", ""))
	}
	if len(p.steps) == 0 {
		problems = append(problems, p.wrong("", "it has no steps; give it one"))
	}
	seen, undos, pivot := map[string]bool{}, map[string]bool{}, ""
	for i, s := range p.steps {
		if err := p.named(s.name, s.name); err != nil {
			problems = append(problems, fmt.Errorf("step %d of %d: %w", i+1, len(p.steps), err))
			continue
		}
		if seen[s.name] {
			problems = append(problems, p.wrong(s.name, "there are two of that name; give each its own"))
		}
		seen[s.name] = true
		if s.undo != "" && undos[s.undo] {
			problems = append(problems, p.wrong(s.name, fmt.Sprintf("another step has an undo named %q; give each its own", s.undo)))
		}
		undos[s.undo] = true
		problems = append(problems, p.place(s, pivot))
		if s.pivot {
			pivot = s.name
		}
	}
	return errors.Join(problems...)
}

// place checks a step against the pivot that stands before it, if one does.
func (p plan) place(s step, pivot string) error {
	backed := s.undo != "" || s.back != nil
	pivotal := false
	for _, other := range p.steps {
		pivotal = pivotal || other.pivot
	}
	last := len(p.steps) > 0 && p.steps[len(p.steps)-1].name == s.name && !pivotal
	switch {
	case s.act == nil:
		return p.wrong(s.name, "it has no action; give it a function")
	case s.pivot && pivot != "":
		return p.wrong(s.name, fmt.Sprintf("%q is a pivot already; a saga has one at most", pivot))
	case s.pivot && backed:
		return p.wrong(s.name, "a pivot is never undone; take its undo away, or make a later step the pivot")
	case pivot != "" && backed:
		return p.wrong(s.name, fmt.Sprintf("it stands behind the pivot %q and is never undone; take its undo away, or move it before the pivot", pivot))
	case s.keep && backed:
		return p.wrong(s.name, "it is declared to need no undo, and has one; take one of the two away")
	case backed && s.back == nil:
		return p.wrong(s.name, fmt.Sprintf("its undo %q is no function; give it one", s.undo))
	case backed:
		return p.named(s.name, s.undo)
	case !s.pivot && pivot == "" && !s.keep:
		mend := "give it an undo, declare it Uncompensable, or move it behind the pivot"
		if last {
			mend = "make it the Pivot, give it an undo, or declare it Uncompensable"
		}
		return p.wrong(s.name, "it cannot be undone when a later step fails or its own outcome is not known; "+mend)
	}
	return nil
}

func (p plan) named(step, name string) error {
	if name == "" || len(name) > longestName {
		return p.wrong(step, fmt.Sprintf("its name, or that of its undo, has %d bytes; give it 1 to %d", len(name), longestName))
	}
	return nil
}

func (p plan) wrong(step, problem string) error {
	return &DefinitionError{Saga: p.name, Step: step, Problem: problem}
}

// fits reports what in a journal does not fit the definition. Undos need no more
// than their functions, and are found by name.
func (p plan) fits(id string, m *machine) error {
	if m.state != Running && m.state != Completing {
		return nil
	}
	for i, done := range m.steps {
		var there string
		if i < len(p.steps) {
			there = p.steps[i].name
		}
		if there != done.name || p.steps[i].pivot != done.pivot || p.steps[i].undo != done.undo {
			return &MismatchError{ID: id, Problem: fmt.Sprintf(
				"step %d was sent as %q (undo %q, pivot %v), and the definition of %q has %q there: serve it by the definition it began with, and give the changed one another name",
				i+1, done.name, done.undo, done.pivot, p.name, there)}
		}
	}
	return nil
}

// undoOf is the step that has the undo of a name; nil if there is none.
func (p plan) undoOf(name string) *step {
	for i := range p.steps {
		if p.steps[i].undo == name {
			return &p.steps[i]
		}
	}
	return nil
}
