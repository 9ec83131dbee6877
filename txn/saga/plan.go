package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// plan is a definition without its type.
type plan struct {
	name    string
	version int // 0 means none
	timeout time.Duration
	// timeoutOf returns the timeout for an input, or 0 for that of timeout; nil means timeout.
	timeoutOf func(input json.RawMessage) (time.Duration, error)
	known     []step  // all steps that its sagas may have
	fixed     []stage // of every saga; nil for a list or a function
	list      func(input json.RawMessage) ([]stage, error)
	body      func(s *Run, input json.RawMessage) error  // instead of fixed and list
	ended     func(ctx context.Context, o Outcome) error // called with the end; nil disables it
	endedAt   func(input json.RawMessage) string         // the target of ended; nil means one for all
}

// stage is a group of concurrent steps.
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

// planner determines the stages of a saga. It is called again after each change of the machine.
type planner interface {
	// rest returns the known stages from the first unfinished one. An empty list means that
	// the saga has no more stages.
	rest(m *machine) ([]stage, error)
	// close releases its resources.
	close()
}

// planner returns the planner of a saga with the machine's input.
func (p plan) planner(id string, m *machine) (planner, error) {
	if p.body != nil {
		return p.functionPlanner(id, m), nil
	}
	stages, err := p.stages(m.input)
	if err != nil {
		return nil, fmt.Errorf("saga %q: %w", id, err)
	}
	l := &listPlanner{id: id, name: p.name, stages: stages}
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

// undoOf returns the step with the undo of a name, or nil.
func (p plan) undoOf(name string) *step {
	for i := range p.known {
		if p.known[i].undo == name {
			return &p.known[i]
		}
	}
	return nil
}

// listPlanner is the planner of stages that are known from the start.
type listPlanner struct {
	id, name string
	stages   []stage
	over     int // finished stages
}

func (l *listPlanner) close() {}

func (l *listPlanner) rest(m *machine) ([]stage, error) {
	for ; l.over < len(l.stages); l.over++ {
		if !m.finished(l.stages[l.over]) {
			return l.stages[l.over:], nil
		}
	}
	return nil, nil
}

// settled reports whether the saga can continue after a step.
func (m *machine) settled(key string) bool {
	p := m.find(key)
	return p != nil && (p.fate == done || p.fate == skipped)
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

// undoer returns the step that undoes p, or nil: in a list the list's own step, whose options its calls
// use, otherwise the known step with the undo of that name.
func (c *execution) undoer(p *progress) *step {
	if !c.listed {
		c.all, c.listed = c.plan.listed(c.m.input), true
	}
	for i := range c.all {
		if s := &c.all[i]; s.key == p.key && s.undo == p.undo && s.back != nil {
			return s
		}
	}
	return c.plan.undoOf(p.undo)
}

// listed returns the steps of a saga's list, or nil if the list fails now.
func (p plan) listed(input json.RawMessage) (all []step) {
	defer func() { _ = recover() }() // then there are none
	stages, err := p.stages(input)
	if err != nil {
		return nil
	}
	for _, st := range stages {
		all = append(all, st.steps...)
	}
	return all
}

// Version returns the definition as its n-th version, from 1; the default is none. A saga keeps
// the version that it began with. Pass old versions to the engine until their sagas have ended.
// Starting an id that exists attaches to it, whatever its version. Versions may differ in
// steps, order, undos and the input's type.
func (d Definition[I]) Version(n int) Definition[I] { d.plan.version = n; return d }

// OnEnd sets a function that is called once the end SUCCEEDED, COMPENSATED or RESOLVED of a
// saga is durable. The owner of the saga's shard calls it at least once, until it returns nil.
// [From] returns the same key each time. A call is bounded by 30 seconds. A dead letter calls
// the hook Dead instead, until an operator resolves it. Sagas begun by a definition without
// OnEnd, or by [Begin], have none.
func (d Definition[I]) OnEnd(f func(ctx context.Context, o Outcome) error) Definition[I] {
	d.plan.ended = f
	return d
}

// EndTarget sets the target of OnEnd, such as a host; see [Action.Target]. The default is one target for
// all sagas of the definition, so that sagas whose OnEnd hangs delay the others. The function must be
// deterministic and must not block.
func (d Definition[I]) EndTarget(of func(input I) string) Definition[I] {
	d.plan.endedAt = func(text json.RawMessage) string {
		var input I
		_ = json.Unmarshal(text, &input) // parsed before, for the steps
		return of(input)
	}
	return d
}

const versionMark = "@v"

// key returns the name and version, as in the type of its sagas.
func (p plan) key() string {
	if p.version == 0 {
		return p.name
	}
	return p.name + versionMark + strconv.Itoa(p.version)
}

// base returns the name of a definition without the version.
func base(key string) string {
	if name, number, versioned := strings.Cut(key, versionMark); versioned {
		if n, err := strconv.Atoi(number); err == nil && n > 0 && strconv.Itoa(n) == number {
			return name
		}
	}
	return key
}

// plan returns the definition of a name or key, the highest version of a name.
func (e *Engine) plan(name string) (plan, bool) {
	best, found := e.plans[name]
	for _, p := range e.plans {
		if p.name == name && (!found || p.version > best.version) {
			best, found = p, true
		}
	}
	return best, found
}

// ending returns the last record, or the one before it if OnEnd is to be called first.
func (m *machine) ending() journal.Entry {
	if m.notify && !m.atEnd {
		return journal.Entry{Kind: recordFinished}
	}
	return journal.Entry{Kind: recordEnd}
}

// report returns the action that calls OnEnd once the end is durable.
func (c *execution) report(now time.Time) action {
	switch {
	case c.plan.ended == nil:
		c.note(now, true, journal.Entry{Kind: recordEnd})
		return action{write: true, rest: true}
	case len(c.pending) > 0:
		return action{write: true}
	case now.Before(c.again):
		return action{wait: c.again}
	}
	return action{report: true}
}

// endTarget returns the target of OnEnd.
func (c *execution) endTarget() string {
	if c.plan.endedAt == nil {
		return c.plan.name + " ended"
	}
	return c.plan.endedAt(c.m.input)
}

// report calls OnEnd.
func (d *drive) report() error {
	o := outcome(d.Head(), &d.m)
	task := coordinator.Task{Target: d.endTarget(), Timeout: 30 * time.Second, Call: branch.Call{
		Transaction: d.ID(), Operation: "ended", Attempt: d.reports + 1},
		Do: func(ctx context.Context) error {
			return d.plan.ended(with(ctx, Call{Type: d.plan.name, Outputs: o.Outputs}), o)
		}}
	err := d.Round(task)[0]
	if gone := d.Holds(); gone != nil && err != nil {
		return gone
	}
	if err == nil {
		d.note(d.Now(), true, journal.Entry{Kind: recordEnd})
		return nil
	}
	d.reports++
	p := Policy{}.resolve()
	_, after := branch.ClassOf(err)
	wait := coordinator.Delay(p.First, p.Max, branch.ClassUnknown, after, d.reports, d.Random())
	d.again, d.timed = d.Now().Add(wait), after > 0
	coordinator.Emit(d.engine.options.Hooks.Tried, observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Attempt: d.reports, Err: err, Again: wait})
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
