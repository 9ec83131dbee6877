package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// An Action is a step of sagas whose input is an I; its output is an O. Both travel
// as JSON. It is a value: its methods return another, and change nothing.
type Action[I, O any] struct{ s step }

// StepOf is an [Action] of any output, in sagas whose input is an I.
type StepOf[I any] interface{ of(I) step }

// step is an action without its types. Input and output are JSON.
type step struct {
	name    string
	act     func(ctx context.Context, input json.RawMessage) (json.RawMessage, error)
	undo    string // empty if there is none
	back    func(ctx context.Context, input, output json.RawMessage) error
	pivot   bool
	keep    bool // declared to need no undo
	timeout time.Duration
	policy  Policy
}

// Step is a step of a name that is unique in its saga, at most 255 bytes. The action
// is called at least once, perhaps again after a crash, and must let a repeated call
// have one effect and one answer: [Call.Key] is the same for all of them. It
// returns when its context ends, and marks its errors with [Fail], [Retry],
// [Unknown] or [Ongoing]. A panic counts as an Unknown error.
func Step[I, O any](name string, action func(ctx context.Context, input I) (O, error)) Action[I, O] {
	if action == nil {
		return Action[I, O]{step{name: name}}
	}
	return Action[I, O]{step{name: name, act: func(ctx context.Context, text json.RawMessage) (json.RawMessage, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return nil, Retry(fmt.Errorf("read the input of step %q: %w", name, err))
		}
		output, err := action(ctx, input)
		if err != nil {
			return nil, err
		}
		return stored(name, output)
	}}}
}

// stored is an output as JSON. One that cannot be kept is no output: what was done
// is not known then.
func stored(name string, output any) (json.RawMessage, error) {
	text, err := json.Marshal(output)
	if err == nil && len(text) > driver.MaxPayload {
		err = fmt.Errorf("it has %d bytes, and may have %d", len(text), driver.MaxPayload)
	}
	if err != nil {
		return nil, Unknown(fmt.Errorf("keep the output of step %q: %w", name, err))
	}
	return text, nil
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
				return fmt.Errorf("read what undo %q is to take back: %w", name, err)
			}
		}
		return undo(ctx, input, output)
	}
	return a
}

// Uncompensable declares that the step needs no undo, though it stands before the
// pivot: it only reads, or what it leaves does no harm.
func (a Action[I, O]) Uncompensable() Action[I, O] { a.s.keep = true; return a }

// Pivot makes the step the last that may fail: once it is done the saga goes on to
// its end, and steps behind it are retried until they are done. A saga has one at
// most. The pivot itself has no undo; while its outcome is not known it is retried.
func (a Action[I, O]) Pivot() Action[I, O] { a.s.pivot = true; return a }

// Timeout bounds each call of the action and of the undo; 0 means 30 seconds.
func (a Action[I, O]) Timeout(d time.Duration) Action[I, O] { a.s.timeout = d; return a }

// Retry says how calls are repeated.
func (a Action[I, O]) Retry(p Policy) Action[I, O] { a.s.policy = p; return a }

// Output is what the step has given: [Call.Outputs] has that of earlier steps,
// [Outcome.Outputs] that of all that were done. Where there is none the error is an
// [ErrNoOutput].
func (a Action[I, O]) Output(from Outputs) (output O, err error) {
	text, ok := from.steps[a.s.name]
	if !ok {
		return output, fmt.Errorf("read the output of step %q: %w", a.s.name, ErrNoOutput)
	}
	if err := json.Unmarshal(text, &output); err != nil {
		return output, fmt.Errorf("read the output of step %q: %w", a.s.name, err)
	}
	return output, nil
}

func (a Action[I, O]) of(I) step { return a.s }

// Outputs is what the steps of a saga have given; see [Action.Output].
type Outputs struct{ steps map[string]json.RawMessage }

// outputs of all steps that were done.
func (m *machine) outputs() Outputs {
	o := Outputs{map[string]json.RawMessage{}}
	for _, p := range m.steps {
		if p.output != nil {
			o.steps[p.name] = p.output
		}
	}
	return o
}
