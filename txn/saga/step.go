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

// An Action is a step of sagas whose input is an I; its output is an O. Both travel
// as JSON. It is a value: its methods return another, and change nothing.
type Action[I, O any] struct{ s step }

// Stage is a stage of sagas whose input is an I: an [Action] of any output, a
// [Parallel] group or a [Sleep].
type Stage[I any] interface{ of(I) []step }

// step is an action without its types. Input and output are JSON.
type step struct {
	name    string // as it was made
	key     string // its own in a saga
	branch  string // as calls name it; empty if that is the key
	at      string // its index
	act     func(ctx context.Context, input json.RawMessage) (json.RawMessage, error)
	local   localAction     // in place of act
	input   json.RawMessage // of its own; nil if it is the saga's
	undo    string          // empty if there is none
	back    func(ctx context.Context, input, output json.RawMessage) error
	truth   func(ctx context.Context, input, output json.RawMessage) (Effect, error)
	repair  bool
	pivot   bool
	keep    bool // declared to need no undo
	grouped bool
	sleep   bool            // it is a wait
	wait    time.Duration   // and for how long; 0 is for ever
	signal  bool            // it waits for a signal
	absent  json.RawMessage // what it gives if none comes in time; nil is that it fails
	timeout time.Duration   // of a call, since its last beat
	longest time.Duration   // of a call, whatever beats
	target  string
	policy  Policy
	by      map[branch.Class]Policy
}

// Step is a step of a name that is unique in its saga, 1 to 255 bytes. The action
// is called at least once, perhaps again after a crash, and must let a repeated call
// have one effect and one answer: [branch.Call.Key] is the same for all of them. It
// returns when its context ends, and marks its errors with [Fail], [Retry],
// [Unknown] or [Ongoing]. A panic counts as an Unknown error.
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

// stored is an output as JSON. One that cannot be kept is no output: what was done
// is not known then.
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

// marshal is json.Marshal without what it does for pages of HTML: an output must not
// become longer than it was.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Undo names what takes the step back, for as long as sagas that have sent it may be
// unfinished: rename neither it nor the step. It is called with the step's output, or
// with nil if it is not known whether the step was done: then it makes sure that
// nothing of it is left, and that a call of the action which is still on its way
// comes to nothing. Like the action it is called at least once.
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
				return fmt.Errorf("read what undo %q undoes: %w", name, err)
			}
		}
		return undo(ctx, input, output)
	}
	return a
}

// At is the step once more, under an index: for the rounds of a loop in a
// [DefineList]. Its key is the step's name, a '#' and the index, and calls bear the
// index as [branch.Call.Step].
func (a Action[I, O]) At(index int) Action[I, O] {
	if a.s.branch == "" {
		a.s.branch = a.s.key
	}
	a.s.at = fmt.Sprint(index)
	a.s.key = a.s.branch + "#" + a.s.at
	return a
}

// Named is the step once more, under another key. Its undo is the same.
func (a Action[I, O]) Named(key string) Action[I, O] {
	a.s.key, a.s.branch, a.s.at = key, "", ""
	return a
}

// Output is what the step has given, the one of this key, in an action or undo of a later one:
// ctx is that of its call. If the step was not done the error is an [ErrNoOutput].
func (a Action[I, O]) Output(ctx context.Context) (O, error) { return a.output(From(ctx).Outputs) }

// OutputOf is what the step has given in a saga of this outcome; see [Action.Output].
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

// Outputs is what the steps of a saga have given; see [Action.Output].
type Outputs struct{ steps map[string]json.RawMessage }

// What can be chosen for a step.

// Uncompensable declares that the step needs no undo, though it stands before the
// pivot: it only reads, or what it leaves does no harm.
func (a Action[I, O]) Uncompensable() Action[I, O] { a.s.keep = true; return a }

// Pivot makes the step the last that may fail: once it is done the saga goes on to
// its end, and steps behind it are retried until they are done. A saga has one at
// most. The pivot itself has no undo; while its outcome is not known it is retried.
func (a Action[I, O]) Pivot() Action[I, O] { a.s.pivot = true; return a }

// Timeout bounds each call of the action and of the undo, counted from its last
// [Heartbeat], if it is called; 0 means 30 seconds.
func (a Action[I, O]) Timeout(d time.Duration) Action[I, O] { a.s.timeout = d; return a }

// MaxTime bounds each call however often it beats; 0 is no bound.
func (a Action[I, O]) MaxTime(d time.Duration) Action[I, O] { a.s.longest = d; return a }

// Target names what the step calls, for the coordinator's limits: steps of one
// target share its places. Empty means the step's name.
func (a Action[I, O]) Target(name string) Action[I, O] { a.s.target = name; return a }

// Retry says how calls are repeated.
func (a Action[I, O]) Retry(p Policy) Action[I, O] { a.s.policy = p; return a }

// RetryOn says how calls are repeated that fail with errors of a class, counted by
// themselves.
func (a Action[I, O]) RetryOn(c branch.Class, p Policy) Action[I, O] {
	a.s.by = maps.Clone(a.s.by)
	if a.s.by == nil {
		a.s.by = map[branch.Class]Policy{}
	}
	a.s.by[c] = p
	return a
}

// resolved is a step with what was not chosen.
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
