package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/twopc"
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

// body returns the body for a step.
func (of orderStep) body(m message) (json.RawMessage, error) {
	if of.Input != nil {
		return of.Input, nil
	}
	if m.Input == nil {
		m.Input = json.RawMessage("null")
	}
	return coordinator.Marshal(m)
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

// A requestError is the error of an invalid request: nothing was begun.
type requestError struct {
	status int
	kind   interlock.ErrorKind
	why    string
}

func (e *requestError) Error() string                  { return e.why }
func (e *requestError) ErrorKind() interlock.ErrorKind { return e.kind }

func badRequest(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, interlock.Definite, fmt.Sprintf(format, args...)}
}

func tooLong(what string) error {
	return &requestError{http.StatusRequestEntityTooLarge, interlock.Definite, fmt.Sprintf("%s is longer than %d bytes", what, maxRequest)}
}

// status returns the HTTP status of an error. After 4xx nothing happened, and a repetition changes nothing.
// After 503 the request can be repeated. After 504 it should be, because its outcome is unknown.
func status(err error) int {
	var request *requestError
	switch kind := interlock.Kind(err); {
	case errors.As(err, &request):
		return request.status
	case errors.Is(err, coordinator.ErrNone):
		return http.StatusNotFound
	case errors.Is(err, coordinator.ErrMismatch), errors.Is(err, twopc.ErrDecided):
		return http.StatusConflict
	case kind == interlock.Retryable:
		return http.StatusServiceUnavailable
	case kind == interlock.Uncertain:
		return http.StatusGatewayTimeout
	case kind == interlock.Bug:
		return http.StatusUnprocessableEntity
	}
	return http.StatusConflict
}

// showDone returns a transaction after a successful request. If it cannot be read, the error is Uncertain,
// because the request has succeeded.
func showDone(view any, err error) (any, error) {
	if err != nil {
		err = &interlock.Error{Op: "look at what was done", Kind: interlock.Uncertain, Err: err}
	}
	return view, err
}

// notBegun makes the error of a request that began nothing Retryable: the request ended before, or the service
// is closed.
func notBegun(ctx context.Context, err error) error {
	kind := interlock.Kind(err)
	ended := ctx.Err() != nil && kind == interlock.Definite && errors.Is(err, context.Cause(ctx))
	if closed := kind == interlock.Bug && errors.Is(err, interlock.ErrClosed); !ended && !closed {
		return err
	}
	return &interlock.Error{Op: "serve request", Kind: interlock.Retryable, Err: err}
}

// reply writes an answer, or an error as {"error":…,"kind":…}.
func reply(w http.ResponseWriter, data any, err error) {
	code := http.StatusOK
	if err != nil {
		code = status(err)
		data = struct {
			Error string `json:"error"`
			Kind  string `json:"kind"`
		}{err.Error(), interlock.Kind(err).String()}
	}
	text, err := json.Marshal(data)
	if err != nil { // data is of our own types, or was stored as JSON
		code, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written","kind":"bug"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the client may have disconnected
}
