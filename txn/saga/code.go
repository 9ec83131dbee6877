package saga

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
)

// code is the planner of a function.
type code struct {
	id   string
	plan plan
	s    *S
	pull func() ([]step, bool)
	stop func()
	at   stage // the one that was asked for last
	err  error
}

func (p plan) code(id string, m *machine) *code {
	c := &code{id: id, plan: p, s: &S{m: m}}
	input := m.input
	c.pull, c.stop = iter.Pull(func(yield func([]step) bool) {
		defer func() {
			switch r := recover(); r.(type) {
			case nil, stopped:
			default:
				c.err = bug("run the function of saga", id, fmt.Errorf("panic: %v\n%s", r, debug.Stack()))
			}
		}()
		c.s.yield = yield
		if c.err = p.body(c.s, input); c.err == nil {
			c.err = c.s.Join()
		}
	})
	return c
}

func (c *code) close() { c.stop() }

// rest goes on with the function until it asks for something that is not there.
func (c *code) rest(m *machine) ([]stage, error) {
	for {
		if c.at.n > 0 && !m.finished(c.at) {
			return []stage{c.at}, nil
		}
		steps, more := c.pull()
		if !more { // it has returned
			break
		}
		c.at = stage{n: c.at.n + 1, steps: steps}
		if err := c.fits(m); err != nil {
			return nil, err
		}
	}
	if c.err != nil {
		return nil, c.failed(m)
	}
	for _, p := range m.steps {
		if p.stage > c.at.n {
			return nil, &MismatchError{ID: c.id, Step: p.key, Problem: fmt.Sprintf("it was sent, and the function of %q returns without it", c.plan.name) + mendPlan}
		}
	}
	return nil, nil
}

// finished reports whether all steps of a stage are settled.
func (m *machine) finished(st stage) bool {
	for _, s := range st.steps {
		if !m.settled(s.key) {
			return false
		}
	}
	return true
}

// errAborted is the error of a function, which aborts its saga.
type errAborted struct{ error }

// failed says what the function's error means.
func (c *code) failed(m *machine) error {
	var mistake *DefinitionError
	switch known := errors.As(c.err, &mistake); {
	case known || isBug(c.err):
		return c.err
	case !m.abortable():
		return bug("run the function of saga", c.id, fmt.Errorf("it fails behind the pivot, where nothing can be aborted: %w", c.err))
	}
	return errAborted{c.err}
}

// fits compares what the function asks for with what is in the journal.
func (c *code) fits(m *machine) error {
	if err := c.check(m); err != nil {
		return err
	}
	for _, s := range c.at.steps {
		p := m.find(s.key)
		switch {
		case p == nil && m.ahead(c.at.n) == nil:
		case p == nil:
			return c.differs(s.key, fmt.Sprintf("the function of %q asks for it in place %d, where %q was sent", c.plan.name, c.at.n, m.ahead(c.at.n).key))
		case p.stage != c.at.n:
			return c.differs(s.key, fmt.Sprintf("it was sent in place %d, and the function of %q asks for it in place %d", p.stage, c.plan.name, c.at.n))
		case p.undo != s.undo || p.pivot != s.pivot || p.wait != s.sleep || p.signal != s.signal:
			return c.differs(s.key, fmt.Sprintf("it was sent with undo %q, pivot %v, and is called with undo %q, pivot %v", p.undo, p.pivot, s.undo, s.pivot))
		case !s.sleep && p.input != nil && !p.edited && string(p.input) != string(s.input):
			return c.differs(s.key, fmt.Sprintf("it was sent with other input than the function of %q has for it now: what differs from run to run belongs in a step", c.plan.name))
		}
	}
	return nil
}

func (c *code) differs(step, problem string) error {
	return &MismatchError{ID: c.id, Step: step, Problem: problem + mendPlan}
}

// ahead is a step that was sent in this place or behind it; nil if there is none.
func (m *machine) ahead(n int) *progress {
	for i := range m.steps {
		if m.steps[i].stage >= n {
			return &m.steps[i]
		}
	}
	return nil
}

// check finds what is wrong with the stage that the function asks for.
func (c *code) check(m *machine) error {
	pivot := ""
	if p := m.pivot(); p != nil && p.stage < c.at.n {
		pivot = p.key
	}
	seen := map[string]bool{}
	for _, s := range c.at.steps {
		p := m.find(s.key)
		problems := []error{c.plan.named(s.key, s.key), c.plan.checkStep(s), c.plan.checkPlace(s, pivot, "")}
		if seen[s.key] || p != nil && p.stage < c.at.n {
			problems = append(problems, c.plan.wrong(s.key, "it is called twice; give each call its own index or key"))
		}
		if s.undo != "" && c.plan.undoOf(s.undo) == nil {
			problems = append(problems, c.plan.wrong(s.key, fmt.Sprintf("its undo %q is not among the steps of DefineFunc; name the step there", s.undo)))
		}
		seen[s.key] = true
		if err := errors.Join(problems...); err != nil {
			return err
		}
	}
	return nil
}
