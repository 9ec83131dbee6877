package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// A Definition is a saga with input I. [New] validates it.
type Definition[I any] struct {
	plan plan
}

// Defined is a [Definition] of any input type.
type Defined interface{ defined() plan }

// Define returns a saga of stages in their order. Its name is unique in the engine, 1 to 200
// bytes. A stage is an [Action], a [Parallel] group or a [Sleep].
func Define[I any](name string, stages ...Stage[I]) Definition[I] {
	groups := groupsOf(stages)
	return Definition[I]{plan{name: name, fixed: stagesOf(groups), known: slices.Concat(groups...)}}
}

func groupsOf[I any](stages []Stage[I]) (groups [][]step) {
	var none I
	for _, s := range stages {
		if s == nil {
			groups = append(groups, []step{{}})
			continue
		}
		groups = append(groups, s.of(none))
	}
	return groups
}

// Parallel returns a stage whose steps are called concurrently. They are undone concurrently,
// too.
func Parallel[I any](steps ...Stage[I]) Stage[I] { return group[I](steps) }

type group[I any] []Stage[I]

func (g group[I]) of(I) []step {
	all := slices.Concat(groupsOf(g)...)
	for i := range all {
		all[i].grouped = true
	}
	return all
}

// Timeout bounds a saga until its pivot is sent, counted from its start by the clock of the
// starting process. Then the saga is aborted. 0 means no bound.
func (d Definition[I]) Timeout(t time.Duration) Definition[I] { d.plan.timeout = t; return d }

// TimeoutOf sets a [Definition.Timeout] that depends on the input. If the function returns 0,
// the definition's applies. The function runs once, when the saga is started.
func (d Definition[I]) TimeoutOf(of func(input I) time.Duration) Definition[I] {
	d.plan.timeoutOf = func(text json.RawMessage) (time.Duration, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return 0, fmt.Errorf("read the input of saga %q: %w", d.plan.name, err)
		}
		return of(input), nil
	}
	return d
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

// EndTarget sets the target of OnEnd, such as a host; see [Action.Target]. The default, also if the function
// panics, is one target for all sagas of the definition, so that sagas whose OnEnd hangs delay the others. The
// function must be deterministic and must not block.
func (d Definition[I]) EndTarget(of func(input I) string) Definition[I] {
	d.plan.endedAt = func(text json.RawMessage) string {
		var input I
		_ = json.Unmarshal(text, &input) // parsed before, for the steps
		return of(input)
	}
	return d
}

func (d Definition[I]) defined() plan { return d.plan }

// An Action is a step of sagas with input I; its output is O. Both are encoded as JSON. An Action
// is a value: its methods return a changed copy.
type Action[I, O any] struct{ s step }

// Stage is a stage of sagas with input I: an [Action] of any output, a [Parallel] group or a
// [Sleep].
type Stage[I any] interface{ of(I) []step }

// step is an action without its types. Input and output are JSON.
type step struct {
	name    string // from its constructor
	key     string // unique in a saga
	branch  string // the Branch of its calls; empty if that is the key
	at      string // its index
	act     func(ctx context.Context, input json.RawMessage) (json.RawMessage, error)
	local   localAction     // instead of act
	input   json.RawMessage // its own; nil if it is the saga's
	undo    string          // empty if there is none
	back    func(ctx context.Context, input, output json.RawMessage) error
	truth   func(ctx context.Context, input, output json.RawMessage) (Effect, error)
	repair  bool
	pivot   bool
	keep    bool // declared to need no undo
	grouped bool
	sleep   bool            // it is a wait
	wait    time.Duration   // of a wait; 0 means without a bound
	signal  bool            // it waits for a signal
	absent  json.RawMessage // the output if no signal arrives in time; nil means that the step fails
	invalid error           // why absent cannot be stored
	timeout time.Duration   // of a call, since its last heartbeat
	longest time.Duration   // of a call, heartbeats included
	target  string
	policy  Policy
	by      map[branch.Class]Policy
}

// Step returns a step. Its name is unique in the saga, 1 to 255 bytes. The action is called at
// least once, and again after a crash or an unknown outcome. All calls have the same
// branch.Call.Key, and must have one effect and one answer. The action must return when its
// context ends. It classifies its errors by [Fail], [Retry], [Unknown] or [InProgress]. A panic
// counts as Unknown.
func Step[I, O any](name string, action func(ctx context.Context, input I) (O, error)) Action[I, O] {
	s := step{name: name, key: name}
	if action == nil {
		return Action[I, O]{s}
	}
	s.act = func(ctx context.Context, text json.RawMessage) (json.RawMessage, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return nil, Retry(fmt.Errorf("read the input of step %q: %w", name, err))
		}
		output, err := action(ctx, input)
		if err != nil {
			return nil, err
		}
		return stored(name, output)
	}
	return Action[I, O]{s}
}

// stored returns an output as JSON. If the journal cannot store the output, the error is
// Unknown.
func stored(name string, output any) (json.RawMessage, error) {
	text, err := coordinator.Marshal(output)
	if err == nil && len(text) > driver.MaxPayload {
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), driver.MaxPayload)
	}
	if err != nil {
		return nil, Unknown(fmt.Errorf("store the output of step %q: %w", name, err))
	}
	return text, nil
}

// Undo sets the compensation of the step. Sagas find it by its name, so neither it nor the step
// may be renamed while sagas that have sent the step are unfinished. It gets the step's output,
// or nil if it is unknown whether the step was done. Then it must remove any effect, and reject
// a call of the action that arrives later. Like the action it is called at least once.
func (a Action[I, O]) Undo(name string, undo func(ctx context.Context, input I, output *O) error) Action[I, O] {
	a.s.undo, a.s.back = name, nil
	if undo == nil {
		return a
	}
	a.s.back = func(ctx context.Context, text, out json.RawMessage) error {
		input, output, err := arguments[I, O](text, out)
		if err != nil {
			return fmt.Errorf("read the arguments of undo %q: %w", name, err)
		}
		return undo(ctx, input, output)
	}
	return a
}

// arguments decodes the arguments of an undo or check; the output is nil if out is.
func arguments[I, O any](text, out json.RawMessage) (input I, output *O, err error) {
	if err = json.Unmarshal(text, &input); err == nil && out != nil {
		output = new(O)
		err = json.Unmarshal(out, output)
	}
	return input, output, err
}

// At returns the step under an index, for rounds of a loop in a [DefineList]. Its key is the
// step's name, '#' and the index. Calls have the index as branch.Call.Step.
func (a Action[I, O]) At(index int) Action[I, O] {
	if a.s.branch == "" {
		a.s.branch = a.s.key
	}
	a.s.at = fmt.Sprint(index)
	a.s.key = a.s.branch + "#" + a.s.at
	return a
}

// Named returns the step under another key, with the same undo.
func (a Action[I, O]) Named(key string) Action[I, O] {
	a.s.key, a.s.branch, a.s.at = key, "", ""
	return a
}

// Output returns the output of the step with this key. ctx is that of an action or undo of a
// later step. If the step was not done the error is an [ErrNoOutput].
func (a Action[I, O]) Output(ctx context.Context) (O, error) { return a.output(From(ctx).Outputs) }

// OutputOf returns the output of the step in a saga with this outcome; see [Action.Output].
func (a Action[I, O]) OutputOf(o Outcome) (O, error) { return a.output(o.Outputs) }

func (a Action[I, O]) output(from Outputs) (output O, err error) {
	text, ok := from.steps[a.s.key]
	if !ok {
		return output, fmt.Errorf("read the output of step %q: %w", a.s.key, ErrNoOutput)
	}
	if err := json.Unmarshal(text, &output); err != nil {
		return output, fmt.Errorf("read the output of step %q: %w", a.s.key, err)
	}
	return output, nil
}

func (a Action[I, O]) of(I) []step { return []step{a.s} }

// Outputs has the outputs of a saga's steps; see [Action.Output].
type Outputs struct{ steps map[string]json.RawMessage }

// All returns every output as JSON, by the step's key.
func (o Outputs) All() map[string]json.RawMessage {
	all := maps.Clone(o.steps)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	return all
}

// Uncompensable declares that the step needs no undo although it is before the pivot: it only
// reads, or its effect is harmless.
func (a Action[I, O]) Uncompensable() Action[I, O] { a.s.keep = true; return a }

// Pivot makes the step the last one that may fail. Once it is done the saga can only complete:
// later steps are retried until they are done. A saga has at most one pivot. The pivot has no
// undo, and is retried while its outcome is unknown.
func (a Action[I, O]) Pivot() Action[I, O] { a.s.pivot = true; return a }

// Timeout bounds each call of the action and of the undo; 0 means 30 seconds. [Heartbeat]
// restarts it.
func (a Action[I, O]) Timeout(d time.Duration) Action[I, O] { a.s.timeout = d; return a }

// MaxTime bounds each call in total, heartbeats included; 0 means no bound.
func (a Action[I, O]) MaxTime(d time.Duration) Action[I, O] { a.s.longest = d; return a }

// Target names the system that the step calls. Steps with one target share its limit in the
// coordinator. Empty means the step's name.
func (a Action[I, O]) Target(name string) Action[I, O] { a.s.target = name; return a }

// Retry sets how failed calls are repeated.
func (a Action[I, O]) Retry(p Policy) Action[I, O] { a.s.policy = p; return a }

// RetryOn sets how calls are repeated that fail with errors of one class. They are counted
// separately.
func (a Action[I, O]) RetryOn(c branch.Class, p Policy) Action[I, O] {
	a.s.by = maps.Clone(a.s.by)
	if a.s.by == nil {
		a.s.by = map[branch.Class]Policy{}
	}
	a.s.by[c] = p
	return a
}

// resolved returns the step with defaults.
func (s step) resolved() step {
	s.policy = s.policy.resolve()
	s.by = maps.Clone(s.by)
	for c, p := range s.by {
		s.by[c] = p.resolve()
	}
	if s.timeout <= 0 {
		s.timeout = 30 * time.Second
	}
	if s.longest > 0 {
		s.timeout = min(s.timeout, s.longest)
	}
	if s.target == "" {
		s.target = s.name
	}
	return s
}

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
	if i := strings.LastIndex(key, versionMark); i >= 0 {
		number := key[i+len(versionMark):]
		if n, err := strconv.Atoi(number); err == nil && n > 0 && strconv.Itoa(n) == number {
			return key[:i]
		}
	}
	return key
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

// finished reports whether all steps of a stage are settled.
func (m *machine) finished(st stage) bool {
	for _, s := range st.steps {
		if !m.settled(s.key) {
			return false
		}
	}
	return true
}

// settled reports whether the saga can continue after a step.
func (m *machine) settled(key string) bool {
	p := m.find(key)
	return p != nil && (p.fate == done || p.fate == skipped)
}
