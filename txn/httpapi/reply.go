package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/twopc"
)

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

// notBegun makes the error of a request that ended before it began anything Retryable.
func notBegun(ctx context.Context, err error) error {
	if ctx.Err() == nil || interlock.Kind(err) != interlock.Definite || !errors.Is(err, context.Cause(ctx)) {
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
