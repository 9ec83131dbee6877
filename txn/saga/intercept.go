package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

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
