package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// plan is a definition without its type.
type plan struct {
	name    string
	version int // 0 is none
	timeout time.Duration
	// timeoutOf is the timeout of an input, if it is not zero; nil is never
	timeoutOf func(input json.RawMessage) (time.Duration, error)
	known     []step  // whatever a saga of it can consist of
	fixed     []stage // of every saga
	list      func(input json.RawMessage) ([]stage, error)
	body      func(s *S, input json.RawMessage) error    // in place of the two before
	ended     func(ctx context.Context, o Outcome) error // called with the end; nil disables it
}

// stage is steps that do not wait for each other.
type stage struct {
	n     int // from 1
	steps []step
}

// stagesOf numbers groups of steps.
func stagesOf(groups [][]step) (all []stage) {
	for i, g := range groups {
		s := stage{n: i + 1}
		for _, each := range g {
			s.steps = append(s.steps, each.resolved())
		}
		all = append(all, s)
	}
	return all
}

// planner says what a saga consists of. It is asked again whenever the machine has
// changed.
type planner interface {
	// rest is the stages from the first that is not over, as far as is known by now;
	// none is the end.
	rest(m *machine) ([]stage, error)
	// close ends it.
	close()
}

// planner is that of a saga of this input.
func (p plan) planner(id string, m *machine) (planner, error) {
	if p.body != nil {
		return p.code(id, m), nil
	}
	stages, err := p.stages(m.input)
	if err != nil {
		return nil, fmt.Errorf("saga %q: %w", id, err)
	}
	l := &list{id: id, name: p.name, stages: stages}
	return l, l.fits(m)
}

func (p plan) stages(input json.RawMessage) ([]stage, error) {
	if p.list == nil {
		return p.fixed, nil
	}
	stages, err := p.list(input)
	if err != nil {
		return nil, err
	}
	return stages, p.checkStages(stages)
}

// undoOf is the step that has the undo of a name; nil if there is none.
func (p plan) undoOf(name string) *step {
	for i := range p.known {
		if p.known[i].undo == name {
			return &p.known[i]
		}
	}
	return nil
}

// list is a planner of stages that are known from the start.
type list struct {
	id, name string
	stages   []stage
	over     int // how many of them are
}

func (l *list) close() {}

func (l *list) rest(m *machine) ([]stage, error) {
	for ; l.over < len(l.stages); l.over++ {
		if !m.finished(l.stages[l.over]) {
			return l.stages[l.over:], nil
		}
	}
	return nil, nil
}

// settled reports whether a saga can go on behind a step.
func (m *machine) settled(key string) bool {
	p := m.find(key)
	return p != nil && (p.fate == done || p.fate == skipped)
}

// fits reports what in a journal does not fit the list. Undos need no more than
// their functions, and are found by name.
func (l *list) fits(m *machine) error {
	last := progress{}
	for _, sent := range m.steps {
		if problem := l.differs(sent); problem != "" {
			return &MismatchError{ID: l.id, Step: sent.key, Problem: problem + mendPlan}
		}
		if sent.fate != inFlight && sent.stage > last.stage {
			last = sent
		}
	}
	for _, s := range l.stages {
		for _, each := range s.steps {
			if s.n < last.stage && !m.settled(each.key) && !m.broken() {
				return &MismatchError{ID: l.id, Step: each.key, Problem: fmt.Sprintf(
					"the definition of %q has it before %q, which was answered without it", l.name, last.key) + mendPlan}
			}
		}
	}
	return nil
}

const mendPlan = ": serve it by the definition it began with, and give the changed one another name"

// differs says how a step that was sent differs from what the list has in its place.
func (l *list) differs(sent progress) string {
	for _, s := range l.stages {
		for _, each := range s.steps {
			if each.key == sent.key && s.n == sent.stage && each.undo == sent.undo && each.pivot == sent.pivot && each.sleep == sent.wait && each.signal == sent.signal {
				return ""
			}
		}
	}
	there := ""
	if sent.stage >= 1 && sent.stage <= len(l.stages) {
		for _, each := range l.stages[sent.stage-1].steps {
			there += fmt.Sprintf(" %q (undo %q, pivot %v)", each.key, each.undo, each.pivot)
		}
	}
	return fmt.Sprintf("it was sent in place %d (undo %q, pivot %v), and the definition of %q has%s there",
		sent.stage, sent.undo, sent.pivot, l.name, orNothing(there))
}

func orNothing(text string) string {
	if text == "" {
		return " nothing"
	}
	return text
}
