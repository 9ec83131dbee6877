package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/driver"
)

// longestName bounds a step's key and an undo's name, in bytes. longestType bounds a
// saga's name, and leaves room for the protocol before it.
const (
	longestName = 255
	longestType = 200
)

// check validates a definition.
func (p plan) check() error {
	var problems []error
	problems = append(problems, p.checkName(), p.checkVersion())
	if p.list == nil && p.body == nil {
		return errors.Join(append(problems, p.checkStages(p.fixed))...)
	}
	undos := map[string]string{}
	for _, s := range p.known {
		problems = append(problems, p.checkStep(s), p.checkUndo(s, undos))
	}
	return errors.Join(problems...)
}

func (p plan) checkName() error {
	switch {
	case p.name == "" || len(p.name) > longestType:
		return p.wrong("", fmt.Sprintf("its name has %d bytes; give it 1 to %d", len(p.name), longestType))
	case !plain(p.name):
		return p.wrong("", "its name is not UTF-8, or contains NUL; use another name")
	}
	return nil
}

// checkVersion validates the version of a definition.
func (p plan) checkVersion() error {
	if p.version < 0 {
		return p.wrong("", fmt.Sprintf("its version is %d; give it one from 1", p.version))
	}
	if base(p.name) != p.name {
		return p.wrong("", "its name ends in \"@v\" and a number; give it a Version instead")
	}
	return nil
}

// plain reports whether JSON, databases and the headers of calls can represent a name.
func plain(name string) bool { return driver.CheckText("a name", name, 0, len(name)) == nil }

// checkStages validates a list of stages.
func (p plan) checkStages(stages []stage) error {
	var problems []error
	if len(stages) == 0 {
		problems = append(problems, p.wrong("", "it has no steps; give it one"))
	}
	seen, undos, pivots, count := map[string]bool{}, map[string]string{}, "", 0
	end := last(stages)
	for _, st := range stages {
		if len(st.steps) == 0 {
			problems = append(problems, p.wrong("", fmt.Sprintf("stage %d has no steps; add one, or remove the stage", st.n)))
		}
		for _, s := range st.steps {
			count++
			if err := p.named(s.key, s.key); err != nil {
				problems = append(problems, fmt.Errorf("step %d: %w", count, err))
				continue
			}
			if seen[s.key] {
				problems = append(problems, p.wrong(s.key, "the name is used twice; names must be unique"))
			}
			seen[s.key] = true
			problems = append(problems, p.checkStep(s), p.checkUndo(s, undos), p.checkPlace(s, pivots, end))
			if s.pivot {
				pivots = s.key
			}
			if p.list != nil && s.undo != "" && p.undoOf(s.undo) == nil {
				problems = append(problems, p.wrong(s.key, fmt.Sprintf("its undo %q is not among the known steps of DefineList; name the step there", s.undo)))
			}
		}
	}
	return errors.Join(problems...)
}

// last returns the key of the last step.
func last(stages []stage) (key string) {
	for _, st := range stages {
		for _, s := range st.steps {
			key = s.key
		}
	}
	return key
}

// checkStep validates a step by itself.
func (p plan) checkStep(s step) error {
	backed := s.undo != "" || s.back != nil
	switch {
	case s.sleep && s.grouped:
		return p.wrong(s.key, "a wait stands alone; take it out of the group")
	case s.signal && (backed || s.pivot || s.local != nil):
		return p.wrong(s.key, "it waits for a signal, which is neither undone nor a pivot")
	case s.invalid != nil:
		return p.wrong(s.key, fmt.Sprintf("%v; give Else another value", s.invalid))
	case s.signal && s.wait < 0, s.sleep && !s.signal && s.wait <= 0:
		return p.wrong(s.key, "the duration of its wait is not above 0")
	case s.sleep: // it needs no more
	case s.act == nil && s.local == nil:
		return p.wrong(s.key, "it has no action; give it a function")
	case s.local != nil && s.grouped:
		return p.wrong(s.key, "a step in a transaction stands alone; take it out of the group")
	case s.pivot && s.grouped:
		return p.wrong(s.key, "a pivot stands alone; take it out of the group")
	case s.pivot && backed:
		return p.wrong(s.key, "a pivot is never undone; remove its undo, or make a later step the pivot")
	case s.keep && backed:
		return p.wrong(s.key, "it is declared to need no undo, and has one; remove one of the two")
	case backed && s.back == nil:
		return p.wrong(s.key, fmt.Sprintf("its undo %q has no function; give it one", s.undo))
	case backed:
		return p.named(s.key, s.undo)
	}
	return nil
}

// checkUndo checks that an undo belongs to one step.
func (p plan) checkUndo(s step, undos map[string]string) error {
	if other, taken := undos[s.undo]; s.undo != "" && taken && other != s.name {
		return p.wrong(s.key, fmt.Sprintf("another step has an undo named %q; give each its own", s.undo))
	}
	undos[s.undo] = s.name
	return nil
}

// checkPlace validates a step against the pivot before it, if there is one.
func (p plan) checkPlace(s step, pivot, last string) error {
	backed := s.undo != "" || s.back != nil
	switch {
	case s.signal && pivot != "" && s.wait > 0 && s.absent == nil:
		return p.wrong(s.key, fmt.Sprintf("it is after the pivot %q and cannot fail; set the output without a signal by Else, or remove Within", pivot))
	case s.sleep || s.act == nil && s.local == nil: // any position is valid
	case s.pivot && pivot != "":
		return p.wrong(s.key, fmt.Sprintf("%q is already the pivot; a saga has at most one", pivot))
	case pivot != "" && backed:
		return p.wrong(s.key, fmt.Sprintf("it is after the pivot %q and is never undone; remove its undo, or move it before the pivot", pivot))
	case !s.pivot && pivot == "" && !s.keep && !backed:
		fix := "give it an undo, declare it Uncompensable, or move it after the pivot"
		if s.key == last {
			fix = "make it the Pivot, give it an undo, or declare it Uncompensable"
		}
		return p.wrong(s.key, "it cannot be undone when a later step fails or its own outcome is unknown; "+fix)
	}
	return nil
}

func (p plan) named(key, name string) error {
	switch {
	case name == "" || len(name) > longestName:
		return p.wrong(key, fmt.Sprintf("its name, or that of its undo, has %d bytes; give it 1 to %d", len(name), longestName))
	case !plain(name):
		return p.wrong(key, "its name, or that of its undo, is not UTF-8, or contains NUL; use another name")
	}
	return nil
}

func (p plan) wrong(step, problem string) error {
	return &DefinitionError{Saga: p.name, Step: step, Problem: problem}
}

// An Interceptor wraps the calls of actions and undos of a definition. It may make the call, omit
// it, or repeat it, and returns the answer. The call's [Call] is in ctx. An action's output is
// JSON, where nil is null; an undo has none. An Interceptor is called concurrently and must
// return when ctx ends. A panic counts as Unknown.
type Interceptor func(ctx context.Context, call func(ctx context.Context) (json.RawMessage, error)) (json.RawMessage, error)

// Intercept returns the definition with an interceptor around each call, for tests that lose or
// repeat calls, and for measurements. A [StepTx] cannot be intercepted, because its answer is its
// commit: it is rejected with a Fail.
func (d Definition[I]) Intercept(around Interceptor) Definition[I] {
	p := &d.plan
	p.fixed = around.stages(p.fixed)
	p.known = around.steps(p.known)
	if list := p.list; list != nil {
		p.list = func(input json.RawMessage) ([]stage, error) {
			stages, err := list(input)
			return around.stages(stages), err
		}
	}
	if body := p.body; body != nil {
		p.body = func(s *Run, input json.RawMessage) error {
			yield := s.yield
			s.yield = func(steps []step) bool { return yield(around.steps(steps)) }
			return body(s, input)
		}
	}
	return d
}

func (around Interceptor) stages(stages []stage) []stage {
	stages = slices.Clone(stages)
	for i := range stages {
		stages[i].steps = around.steps(stages[i].steps)
	}
	return stages
}

func (around Interceptor) steps(steps []step) []step {
	steps = slices.Clone(steps)
	for i := range steps {
		steps[i] = around.step(steps[i])
	}
	return steps
}

// step returns a step whose functions are called through around.
func (around Interceptor) step(s step) step {
	if act := s.act; act != nil {
		s.act = func(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
			output, err := around(ctx, func(ctx context.Context) (json.RawMessage, error) { return act(ctx, input) })
			if err == nil && output == nil {
				output = json.RawMessage("null") // no output would mean that it is unknown whether the step was done
			}
			return output, err
		}
	}
	if back := s.back; back != nil {
		s.back = func(ctx context.Context, input, output json.RawMessage) error {
			_, err := around(ctx, func(ctx context.Context) (json.RawMessage, error) { return nil, back(ctx, input, output) })
			return err
		}
	}
	if s.local != nil {
		key := s.key
		s.local = nil
		s.act = func(context.Context, json.RawMessage) (json.RawMessage, error) {
			return nil, Fail(fmt.Errorf("step %q commits in a transaction of a database, and cannot be intercepted", key))
		}
	}
	return s
}

// fits returns how the journal differs from the list. Undos are found by name and need no list.
func (l *listPlanner) fits(m *machine) error {
	last := progress{}
	for _, sent := range m.steps {
		if problem := l.differs(sent); problem != "" {
			return &MismatchError{ID: l.id, Step: sent.key, Problem: problem + useOldDefinition}
		}
		if sent.fate != inFlight && sent.stage > last.stage {
			last = sent
		}
	}
	for _, s := range l.stages {
		for _, each := range s.steps {
			if s.n < last.stage && !m.settled(each.key) && !m.broken() {
				return &MismatchError{ID: l.id, Step: each.key, Problem: fmt.Sprintf(
					"the definition of %q has it before %q, which was answered without it", l.name, last.key) + useOldDefinition}
			}
		}
	}
	return nil
}

const useOldDefinition = ": serve it by the definition it began with, and give the changed one another name"

// differs returns how a sent step differs from the list's stage.
func (l *listPlanner) differs(sent progress) string {
	for _, s := range l.stages {
		for _, each := range s.steps {
			if each.key == sent.key && s.n == sent.stage && each.undo == sent.undo && each.pivot == sent.pivot && each.sleep == sent.wait && each.signal == sent.signal {
				return ""
			}
		}
	}
	steps := ""
	if sent.stage >= 1 && sent.stage <= len(l.stages) {
		for _, each := range l.stages[sent.stage-1].steps {
			steps += fmt.Sprintf(" %q (undo %q, pivot %v)", each.key, each.undo, each.pivot)
		}
	}
	return fmt.Sprintf("it was sent in place %d (undo %q, pivot %v), and the definition of %q has%s there",
		sent.stage, sent.undo, sent.pivot, l.name, cmp.Or(steps, " nothing"))
}
