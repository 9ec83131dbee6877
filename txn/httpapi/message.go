package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/saga"
)

// message is the body for a step without an input of its own. It is the same for each call, also if other
// steps of its group have completed.
type message struct {
	Input   json.RawMessage            `json:"input"`
	Outputs map[string]json.RawMessage `json:"outputs"`          // of earlier stages
	Output  json.RawMessage            `json:"output,omitempty"` // of the undone step, if known
}

// find returns the step of a name.
func find(steps []orderStep, name string) *orderStep {
	for i := range steps {
		if steps[i].Name == name && len(steps[i].Parallel) == 0 {
			return &steps[i]
		}
		if found := find(steps[i].Parallel, name); found != nil {
			return found
		}
	}
	return nil
}

// send calls the branch of a step. Its input is the order, or an operator's edit of the step's input.
func (s *Service) send(ctx context.Context, input json.RawMessage, out *json.RawMessage) (json.RawMessage, error) {
	c := saga.From(ctx)
	var o order
	if err := json.Unmarshal(c.Input, &o); err != nil {
		return nil, fmt.Errorf("read the saga's input: %w", err)
	}
	of := find(o.Steps, c.Branch)
	if of == nil {
		return nil, fmt.Errorf("the order has no step %q", c.Branch)
	}
	if c.Edited {
		of.Input = input
	}
	address, m := of.Do, message{Input: o.Input, Outputs: earlier(o.Steps, c.Branch, c.Outputs.All())}
	if c.Operation == branch.Undo {
		address = of.Undo
	}
	if out != nil {
		m.Output = *out
	}
	body, err := of.body(m)
	if err != nil {
		return nil, saga.Unknown(err)
	}
	if c.Operation == branch.Undo && len(body) > branchhttp.MaxInput { // an undo must be possible
		m.Outputs = nil
		if body, err = of.body(m); err != nil {
			return nil, saga.Unknown(err)
		}
	}
	return output(s.post(ctx, address, c.Call, body))
}

// body returns the body for a step, without json.Marshal's escapes for HTML, which could make it several
// times as long.
func (of orderStep) body(m message) (json.RawMessage, error) {
	if of.Input != nil {
		return of.Input, nil
	}
	if m.Input == nil {
		m.Input = json.RawMessage("null")
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(m)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// earlier returns the outputs of the stages before a step's.
func earlier(steps []orderStep, name string, outputs map[string]json.RawMessage) map[string]json.RawMessage {
	before := map[string]json.RawMessage{}
	for i := range steps {
		if find(steps[i:i+1], name) != nil {
			break
		}
		for _, of := range slices.Concat(steps[i].Parallel, steps[i:i+1]) {
			if text, done := outputs[of.Name]; done {
				before[of.Name] = text
			}
		}
	}
	return before
}

// RedactOrder returns the input of a saga of this service with redacted addresses: without user
// information, query and fragment. Any other text is unchanged.
func RedactOrder(input json.RawMessage) json.RawMessage {
	var o order
	if json.Unmarshal(input, &o) != nil || len(o.Steps) == 0 {
		return input
	}
	redactSteps(o.Steps)
	if o.OnEnd != "" {
		o.OnEnd = failure.RedactURL(o.OnEnd)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return input
	}
	return text
}

func redactSteps(steps []orderStep) {
	for i := range steps {
		for _, address := range []*string{&steps[i].Do, &steps[i].Undo} {
			if *address != "" {
				*address = failure.RedactURL(*address)
			}
		}
		redactSteps(steps[i].Parallel)
	}
}
