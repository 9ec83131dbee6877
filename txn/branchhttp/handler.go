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

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/internal/strictjson"
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
//	Retry    503, with Retry-After if the error has a method RetryAfter() time.Duration
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
	class, after := branch.ClassOf(err)
	if class == branch.ClassInProgress || class == branch.ClassRetry && after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(after.Seconds())))))
	}
	switch {
	case err == nil && len(output) == 0:
		w.WriteHeader(http.StatusNoContent)
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(output) // if it fails, the caller repeats the call
	case class == branch.ClassFail:
		writeText(w, http.StatusConflict, err.Error())
	case class == branch.ClassInProgress:
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
	case len(output) > 0 && !isJSON(output):
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

// A Mark is the low-water mark that a coordinator sends: every transaction that began before
// Before has ended, except those in Except. A participant may delete their records. Each
// transaction in Except stays in all later marks until it ends. A mark below the last one
// has no effect.
type Mark struct {
	Before time.Time // in whole milliseconds
	Except []string  // ids; a coordinator sends at most 256
}

// MarkOperation is the operation in the header of a request with a [Mark], so that one
// address can serve marks and calls. The body is
// {"before": milliseconds since 1970, "except": [ids]}.
const MarkOperation = "forget"

// MaxMark is the longest body of a request with a [Mark], in bytes.
const MaxMark = 512 << 10

type markBody struct {
	Before int64    `json:"before"`
	Except []string `json:"except"`
}

type markAnswer struct {
	Removed int `json:"removed"`
}

// Forget sends a mark to a participant, and returns the number of removed rows, or 0 if the
// participant does not report it. It does not retry: the next mark has the same effect. The error
// is an [*AnswerError] (Uncertain) if the answer is not 2xx, Uncertain without an answer, or a Bug
// if the mark cannot be sent. Forget blocks until the participant answers or ctx ends.
func (caller Caller) Forget(ctx context.Context, url string, m Mark) (removed int, err error) {
	fail := func(kind interlock.ErrorKind, err error) (int, error) {
		return 0, &interlock.Error{Op: "send mark", Driver: "http", Name: failure.RedactURL(url), Kind: kind, Err: failure.RedactError(err)}
	}
	body, err := json.Marshal(markBody{m.Before.UnixMilli(), append([]string{}, m.Except...)})
	if err == nil && len(body) > MaxMark {
		err = fmt.Errorf("the mark has %d bytes, at most %d are allowed", len(body), MaxMark)
	}
	var request *http.Request
	if err == nil {
		request, err = newPost(ctx, url, body)
	}
	if err != nil {
		return fail(interlock.Bug, err)
	}
	request.Header.Set(HeaderOperation, MarkOperation)
	answer, err := httpclient.WithoutRedirects(caller.Client).Do(request)
	if err != nil {
		return fail(interlock.Uncertain, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fail(interlock.Uncertain, answerError(answer))
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxReason))
	if err != nil {
		return fail(interlock.Uncertain, err)
	}
	var reported markAnswer
	_ = json.Unmarshal(text, &reported) // optional
	return max(0, reported.Removed), nil
}

// ForgetHandler serves the marks of the coordinators of one journal. forget deletes records as the
// mark allows, like barrier.ForgetExcept, and returns the number of removed rows. A participant of
// several journals must not use it: a mark covers the transactions of one journal only. Restrict it
// to the callers of the branches.
//
// The answer is 200, or 500 with the error's text; a request that is not a mark is answered
// 400, 405 or 413.
func ForgetHandler(forget func(ctx context.Context, m Mark) (removed int, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			writeText(w, http.StatusMethodNotAllowed, "a mark is a POST")
			return
		}
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMark))
		if err != nil {
			writeText(w, bodyStatus(err), err.Error())
			return
		}
		m, err := readMark(text)
		if err != nil {
			writeText(w, http.StatusBadRequest, err.Error())
			return
		}
		removed, err := forget(r.Context(), m)
		if err != nil {
			writeText(w, http.StatusInternalServerError, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(markAnswer{removed}) // the count is optional
	})
}

// readMark parses a mark strictly: records of a misread exception would be deleted too early.
func readMark(text []byte) (Mark, error) {
	b, err := strictjson.Decode[markBody](text)
	if err != nil {
		return Mark{}, fmt.Errorf("the mark is not JSON with before and except: %w", err)
	}
	if b.Before <= 0 || b.Before > latest || b.Except == nil {
		return Mark{}, fmt.Errorf("the mark needs before, in milliseconds since 1970, and except, a list")
	}
	for _, id := range b.Except {
		if driver.CheckText("", id, 1, driver.MaxTransaction) != nil {
			return Mark{}, fmt.Errorf("%.40q is not the id of a transaction", id)
		}
	}
	return Mark{time.UnixMilli(b.Before), b.Except}, nil
}
