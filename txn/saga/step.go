package saga

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

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
	text, err := marshal(output)
	if err == nil && len(text) > driver.MaxPayload {
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), driver.MaxPayload)
	}
	if err != nil {
		return nil, Unknown(fmt.Errorf("store the output of step %q: %w", name, err))
	}
	return text, nil
}

// marshal is json.Marshal without escapes for HTML, which would make an output longer.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
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
		var input I
		var output *O
		if err := json.Unmarshal(text, &input); err != nil {
			return fmt.Errorf("read the input of undo %q: %w", name, err)
		}
		if out != nil {
			output = new(O)
			if err := json.Unmarshal(out, output); err != nil {
				return fmt.Errorf("read the output for undo %q: %w", name, err)
			}
		}
		return undo(ctx, input, output)
	}
	return a
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

// Options of a step.

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
