package branchhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

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
	answer, err := caller.client().Do(request)
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
	var b markBody
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return Mark{}, fmt.Errorf("the mark is not JSON with before and except: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Mark{}, fmt.Errorf("the body continues after the mark")
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
