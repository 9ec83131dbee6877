package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Sagas of a function, whose steps have their own inputs.

// DefineList returns a saga whose stages are computed from its input: a list of variable length,
// or one step under several keys ([Action.At], [Action.Named]). The function must be
// deterministic. It runs when the saga is started, where its error is returned and nothing
// begins, and in each process that takes over. Known has every step with an undo that may occur
// in a list: undos are found by name, without the list.
func DefineList[I any](name string, stages func(input I) ([]Stage[I], error), known ...Stage[I]) Definition[I] {
	p := plan{name: name, known: slices.Concat(groupsOf(known)...)}
	p.list = func(text json.RawMessage) ([]stage, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return nil, fmt.Errorf("read the input of saga %q: %w", name, err)
		}
		if stages == nil {
			return nil, nil
		}
		list, err := stages(input)
		return stagesOf(groupsOf(list)), err
	}
	return Definition[I]{p}
}

// AnyAction is an [Action] of any input and output type.
type AnyAction interface{ known() step }

func (a Action[I, O]) known() step { return a.s }

// DefineFunc returns a saga whose stages are requested by a function: body calls steps by
// [Action.Do] or [Action.Go], with inputs that it computes. If body returns nil the saga
// succeeds. If body returns an error before the pivot was sent, the saga is aborted.
//
// Body runs again from its start in Start and in each process that takes over. Completed steps
// then return their recorded outputs at once. So body must be deterministic in its input and
// these outputs: time, randomness and reads of other systems belong in steps. It must not block
// otherwise. If it requests other steps than the journal has, or one with another input, the saga
// is left alone with a [*MismatchError]. If a step fails for good the saga is aborted and body
// does not continue. Each stage is one append.
//
// Steps are all steps with an undo that body may call.
func DefineFunc[I any](name string, body func(s *Run, input I) error, steps ...AnyAction) Definition[I] {
	p := plan{name: name}
	for _, k := range steps {
		if k == nil {
			k = Action[I, I]{}
		}
		p.known = append(p.known, k.known())
	}
	p.body = func(s *Run, text json.RawMessage) error {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return fmt.Errorf("read the input of saga %q: %w", name, err)
		}
		if body == nil {
			return p.wrong("", "it has no function; give it one")
		}
		return body(s, input)
	}
	return Definition[I]{p}
}

// A Run is one execution of a [DefineFunc] function. It must be used by the function's own
// goroutine only: a call from another one panics.
type Run struct {
	m     *machine
	yield func([]step) bool
	group []step // requested by Go, not joined yet
}

// Do calls the step and returns when it is done, once in the saga under its key; see [Action.At]
// and [Action.Named] for several. The error is non-nil if the input cannot be encoded or the
// output cannot be decoded. The output of a step that an operator has skipped is the zero value.
func (a Action[I, O]) Do(s *Run, input I) (output O, err error) {
	if a.s.signal {
		return a.Await(s)
	}
	later := a.Go(s, input)
	if err := s.Join(); err != nil {
		return output, err
	}
	return later.Output()
}

// Go requests the step without waiting. All steps of Go are called concurrently, as one stage, by
// the next [Run.Join].
func (a Action[I, O]) Go(s *Run, input I) *Future[O] {
	text, err := compact(input)
	if err == nil && len(text) > driver.MaxPayload/2 {
		err = fmt.Errorf("its input has %d bytes, at most %d are allowed", len(text), driver.MaxPayload/2)
	}
	if err != nil {
		return &Future[O]{err: fmt.Errorf("call step %q: %w", a.s.key, err)}
	}
	each := a.s.resolved()
	each.input, each.grouped = text, len(s.group) > 0
	if each.grouped {
		s.group[0].grouped = true
	}
	s.group = append(s.group, each)
	return &Future[O]{s: s, key: a.s.key}
}

// A Future is the output of a step. It is available after the next [Run.Join].
type Future[O any] struct {
	s   *Run
	key string
	err error
}

// Output returns the output of the step. Before the Join the error is an [ErrNoOutput].
func (l *Future[O]) Output() (output O, err error) {
	if l.err != nil {
		return output, l.err
	}
	p := l.s.m.find(l.key)
	switch {
	case p == nil || p.fate != done && p.fate != skipped:
		return output, fmt.Errorf("read the output of step %q: %w", l.key, ErrNoOutput)
	case p.fate == skipped:
		return output, nil
	}
	if err := json.Unmarshal(p.output, &output); err != nil {
		return output, fmt.Errorf("read the output of step %q: %w", l.key, err)
	}
	return output, nil
}

// Join waits for the steps of all Go calls since the last Join.
func (s *Run) Join() error {
	if len(s.group) == 0 {
		return nil
	}
	group := s.group
	s.group = nil
	s.stage(group)
	return nil
}

// Sleep waits, as a stage of its own; see the function [Sleep]. The name is unique among the
// steps of the saga. Steps of Go that were not joined are called first.
func (s *Run) Sleep(name string, d time.Duration) error {
	if err := s.Join(); err != nil {
		return err
	}
	s.stage([]step{{name: name, key: name, sleep: true, wait: d}})
	return nil
}

// stage yields a stage. If the function must stop, stage does not return.
func (s *Run) stage(steps []step) {
	if !s.yield(steps) {
		panic(functionStopped{})
	}
}

// functionStopped unwinds a function that must stop. In another goroutine it ends the process.
type functionStopped struct{}

func (functionStopped) Error() string {
	return "the function of a saga has stopped; this message means that another goroutine than the function's own has called a step"
}

// functionPlanner is the planner of a function.
type functionPlanner struct {
	id   string
	plan plan
	s    *Run
	pull func() ([]step, bool)
	stop func()
	at   stage // the last requested stage
	err  error
}

func (p plan) functionPlanner(id string, m *machine) *functionPlanner {
	c := &functionPlanner{id: id, plan: p, s: &Run{m: m}}
	input := m.input
	c.pull, c.stop = iter.Pull(func(yield func([]step) bool) {
		defer func() {
			switch r := recover(); r.(type) {
			case nil, functionStopped:
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

func (c *functionPlanner) close() { c.stop() }

// rest runs the function until it requests a step that is not done.
func (c *functionPlanner) rest(m *machine) ([]stage, error) {
	for {
		if c.at.n > 0 && !m.finished(c.at) {
			return []stage{c.at}, nil
		}
		steps, more := c.pull()
		if !more { // the function has returned
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
			return nil, &MismatchError{ID: c.id, Step: p.key, Problem: fmt.Sprintf("it was sent, and the function of %q returns without it", c.plan.name) + useOldDefinition}
		}
	}
	return nil, nil
}

// errAborted is the error of a function, which aborts its saga.
type errAborted struct{ error }

func (e errAborted) Unwrap() error { return e.error }

// failed interprets the function's error.
func (c *functionPlanner) failed(m *machine) error {
	var mistake *DefinitionError
	switch known := errors.As(c.err, &mistake); {
	case known || interlock.Kind(c.err) == interlock.Bug:
		return c.err
	case !m.abortable():
		return bug("run the function of saga", c.id, fmt.Errorf("it failed after the pivot, where no abort is possible: %w", c.err))
	}
	return errAborted{c.err}
}

// fits compares the requested stage with the journal.
func (c *functionPlanner) fits(m *machine) error {
	if err := c.check(m); err != nil {
		return err
	}
	for _, s := range c.at.steps {
		p := m.find(s.key)
		switch {
		case p == nil && c.continues(m):
		case p == nil:
			return c.differs(s.key, fmt.Sprintf("the function of %q requests it in place %d, where %q was sent", c.plan.name, c.at.n, m.ahead(c.at.n).key))
		case p.stage != c.at.n:
			return c.differs(s.key, fmt.Sprintf("it was sent in place %d, and the function of %q requests it in place %d", p.stage, c.plan.name, c.at.n))
		case p.undo != s.undo || p.pivot != s.pivot || p.wait != s.sleep || p.signal != s.signal:
			return c.differs(s.key, fmt.Sprintf("it was sent with undo %q, pivot %v, and is called with undo %q, pivot %v", p.undo, p.pivot, s.undo, s.pivot))
		case !s.sleep && p.input != nil && !p.edited && string(p.input) != string(s.input):
			return c.differs(s.key, fmt.Sprintf("it was sent with other input than the function of %q has now: values that differ between runs belong in a step", c.plan.name))
		}
	}
	return nil
}

// continues reports whether the requested stage is new, or only its first steps were sent, and none was
// answered: their process has ended between two appends.
func (c *functionPlanner) continues(m *machine) bool {
	sent := 0
	for _, p := range m.steps {
		if p.stage < c.at.n {
			continue
		}
		if sent == len(c.at.steps) || p.key != c.at.steps[sent].key || p.fate != inFlight {
			return false
		}
		sent++
	}
	return true
}

func (c *functionPlanner) differs(step, problem string) error {
	return &MismatchError{ID: c.id, Step: step, Problem: problem + useOldDefinition}
}

// ahead returns a step that was sent in this stage or a later one, or nil.
func (m *machine) ahead(n int) *progress {
	for i := range m.steps {
		if m.steps[i].stage >= n {
			return &m.steps[i]
		}
	}
	return nil
}

// check validates the requested stage.
func (c *functionPlanner) check(m *machine) error {
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
