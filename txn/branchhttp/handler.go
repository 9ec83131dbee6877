package branchhttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
)

// errLate is the cause with which the context of a call ends at its deadline.
var errLate = errors.New("the deadline of the call has passed")

// Handler serves the calls of a branch. The context of work contains the call, see
// [branch.From], and ends at its deadline or when the caller disconnects. It is not a
// barrier: work must use one, because every call may be repeated and reordered.
//
// The error's class decides the answer:
//
//	nil      200, with the output, which is JSON; 204 if it is empty
//	Fail     409
//	InProgress  425, with Retry-After in seconds, 1 at least
//	Retry    503
//	Unknown  500; 422, with [HeaderInput], if it is [branch.ErrOtherInput]
//
// The error's text is the body. The coordinator keeps it and shows it to operators, so it
// must not contain secrets. A request that is not a call is answered 400, 405 or 413. The
// http.Server bounds how long a request may take to arrive.
//
// If the deadline has passed by the clock of this process, the answer is 408 and work is
// not called: the caller no longer waits. It is not 425, although nothing was done. If
// the two clocks differ, the coordinator would repeat a 425 forever; a 408 counts as an
// attempt, so that an operator sees it.
func Handler(work func(ctx context.Context, input []byte) (output []byte, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			writeText(w, http.StatusMethodNotAllowed, "a call is a POST")
			return
		}
		c, err := FromRequest(r)
		if err != nil {
			writeText(w, http.StatusBadRequest, err.Error())
			return
		}
		input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxInput))
		if err != nil {
			writeText(w, bodyStatus(err), err.Error())
			return
		}
		ctx := branch.With(r.Context(), c)
		if !c.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, c.Deadline, errLate)
			defer cancel()
		}
		if err := context.Cause(ctx); err != nil {
			writeText(w, http.StatusRequestTimeout, fmt.Sprintf("%v, at %s", err, c.Deadline.UTC().Format(time.RFC3339Nano)))
			return
		}
		answer(w, func() ([]byte, error) { return work(ctx, input) })
	})
}

// bodyStatus returns the status for a body that could not be read.
func bodyStatus(err error) int {
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// answer does the work, and writes its outcome.
func answer(w http.ResponseWriter, work func() ([]byte, error)) {
	output, err := work()
	if err == nil {
		err = checkOutput(output)
	}
	switch class, after := branch.ClassOf(err); {
	case err == nil && len(output) == 0:
		w.WriteHeader(http.StatusNoContent)
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(output) // if it fails, the caller repeats the call
	case class == branch.ClassFail:
		writeText(w, http.StatusConflict, err.Error())
	case class == branch.ClassInProgress:
		seconds := int(math.Ceil(after.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(max(1, seconds)))
		writeText(w, http.StatusTooEarly, err.Error())
	case class == branch.ClassRetry:
		writeText(w, http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, branch.ErrOtherInput):
		w.Header().Set(HeaderInput, otherInput)
		writeText(w, http.StatusUnprocessableEntity, err.Error())
	default:
		writeText(w, http.StatusInternalServerError, err.Error())
	}
}

// checkOutput refuses an output that [Caller] would refuse. The work was done, so the class of
// this error is Unknown.
func checkOutput(output []byte) error {
	switch {
	case len(output) > MaxBody:
		return fmt.Errorf("the output has %d bytes, at most %d are allowed", len(output), MaxBody)
	case len(output) > 0 && !json.Valid(output):
		return errNotJSON
	}
	return nil
}

// writeText answers with a text.
func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}
