package branch

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
)

// errLate is the cause with which the context of a call ends at its deadline.
var errLate = errors.New("the deadline of the call has passed")

// Handler serves the calls of a branch: work is called under a context that has the
// call, see [From], and ends at its deadline, or when the caller has gone. It is not a
// barrier: work has to ask one, since every call may come again, and behind others.
//
// The answer is that of the error's class:
//
//	nil      200, with the output, which is JSON; 204 if it is empty
//	Fail     409
//	Ongoing  425, with the seconds after which to ask again in Retry-After, 1 at least
//	Retry    503
//	Unknown  500; 422, with [HeaderInput], if it is [ErrOtherInput]
//
// The error's text is the body: the coordinator keeps it, and shows it to operators,
// so it is not to tell what they must not know. A request that is no call is
// answered 400, 405 or 413. How long one may take to come is for the http.Server to
// bound.
//
// A call whose deadline has passed by the clock of this process is answered 408, and
// not worked on: nobody waits for its answer, and its effect would be one that the
// coordinator has long treated as unknown. It is not answered 425, though nothing was
// done: if the two clocks differ the coordinator does read the answer, and would ask
// again for ever, where 408 counts as an attempt and comes to the notice of people.
func Handler(work func(ctx context.Context, input []byte) (output []byte, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			say(w, http.StatusMethodNotAllowed, "a call is a POST")
			return
		}
		c, err := FromRequest(r)
		if err != nil {
			say(w, http.StatusBadRequest, err.Error())
			return
		}
		input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxInput))
		if err != nil {
			say(w, unread(err), err.Error())
			return
		}
		ctx := With(r.Context(), c)
		if !c.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, c.Deadline, errLate)
			defer cancel()
		}
		if err := context.Cause(ctx); err != nil {
			say(w, http.StatusRequestTimeout, fmt.Sprintf("%v, at %s", err, c.Deadline.UTC().Format(time.RFC3339Nano)))
			return
		}
		answer(w, func() ([]byte, error) { return work(ctx, input) })
	})
}

// unread is the status for an input that could not be read.
func unread(err error) int {
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// answer says what came of the work.
func answer(w http.ResponseWriter, work func() ([]byte, error)) {
	output, err := work()
	if err == nil {
		err = carried(output)
	}
	switch class, after := ClassOf(err); {
	case err == nil && len(output) == 0:
		w.WriteHeader(http.StatusNoContent)
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(output) // a caller that has gone asks again
	case class == ClassFail:
		say(w, http.StatusConflict, err.Error())
	case class == ClassOngoing:
		seconds := int(math.Ceil(after.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(max(1, seconds)))
		say(w, http.StatusTooEarly, err.Error())
	case class == ClassRetry:
		say(w, http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, ErrOtherInput):
		w.Header().Set(HeaderInput, otherInput)
		say(w, http.StatusUnprocessableEntity, err.Error())
	default:
		say(w, http.StatusInternalServerError, err.Error())
	}
}

// carried refuses an output that [Caller] would: the work was done, so this is an
// error of which the effect is not known.
func carried(output []byte) error {
	switch {
	case len(output) > MaxBody:
		return fmt.Errorf("the output has %d bytes, at most %d are allowed", len(output), MaxBody)
	case len(output) > 0 && !json.Valid(output):
		return errNotJSON
	}
	return nil
}

// say answers with a text.
func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}
