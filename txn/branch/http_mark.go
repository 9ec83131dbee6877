package branch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Mark is what a participant may forget, as a coordinator sends it: every transaction
// that began before Before has ended, but for those in Except. Each transaction in Except
// is in all later marks too, until it ends. A lower mark than the last says nothing new.
type Mark struct {
	Before time.Time // in whole milliseconds
	Except []string  // ids; a coordinator sends at most 256
}

// MarkOperation is the operation in the header of a request that brings a [Mark], so that
// one address can serve it and calls. Its body is
// {"before": milliseconds since 1970, "except": [ids]}.
const MarkOperation = "forget"

// MaxMark is the longest body of a request that brings a [Mark], in bytes.
const MaxMark = 512 << 10

type markBody struct {
	Before int64    `json:"before"`
	Except []string `json:"except"`
}

type markAnswer struct {
	Removed int `json:"removed"`
}

// Forget sends a mark to a participant, and returns how many rows that says it removed; 0
// if it does not say. It retries nothing: the next mark does. An error is an
// [*AnswerError] (Uncertain) if the answer is not 2xx, Uncertain if there is none, or a Bug
// if the mark cannot be sent. It blocks until the participant has answered, or ctx ends.
func (caller Caller) Forget(ctx context.Context, url string, m Mark) (removed int, err error) {
	wrong := func(kind interlock.ErrorKind, err error) (int, error) {
		return 0, &interlock.Error{Op: "send mark", Driver: "http", Name: failure.RedactURL(url), Kind: kind, Err: failure.RedactError(err)}
	}
	body, err := json.Marshal(markBody{m.Before.UnixMilli(), append([]string{}, m.Except...)})
	if err == nil && len(body) > MaxMark {
		err = fmt.Errorf("the mark has %d bytes, at most %d are allowed", len(body), MaxMark)
	}
	var request *http.Request
	if err == nil {
		request, err = newPost(url, body)
	}
	if err != nil {
		return wrong(interlock.Bug, err)
	}
	request.Header.Set(HeaderOperation, MarkOperation)
	answer, err := caller.client().Do(request.WithContext(ctx))
	if err != nil {
		return wrong(interlock.Uncertain, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return wrong(interlock.Uncertain, answerError(answer))
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxReason))
	if err != nil {
		return wrong(interlock.Uncertain, err)
	}
	var said markAnswer
	_ = json.Unmarshal(text, &said) // it need not say
	return max(0, said.Removed), nil
}

// ForgetHandler serves the marks of one coordinator, or of several on one journal: forget
// has the participant forget, as barrier.ForgetExcept does, and returns how many rows it
// removed. A participant that is called for several journals must not use it: a
// transaction that one journal does not know has not ended for that. Let only those reach
// it who may call the branches.
//
// The answer is 200, or 500 with the error's text; a request that is no mark is answered
// 400, 405 or 413.
func ForgetHandler(forget func(ctx context.Context, m Mark) (removed int, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			say(w, http.StatusMethodNotAllowed, "a mark is a POST")
			return
		}
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMark))
		if err != nil {
			say(w, unread(err), err.Error())
			return
		}
		m, err := readMark(text)
		if err != nil {
			say(w, http.StatusBadRequest, err.Error())
			return
		}
		removed, err := forget(r.Context(), m)
		if err != nil {
			say(w, http.StatusInternalServerError, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(markAnswer{removed}) // the next mark says it again
	})
}

// readMark is strict: what is taken for less than it is would be forgotten too early.
func readMark(text []byte) (Mark, error) {
	var b markBody
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return Mark{}, fmt.Errorf("the mark is not JSON with before and except: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Mark{}, fmt.Errorf("there is something after the mark")
	}
	if b.Before <= 0 || b.Before > latest || b.Except == nil {
		return Mark{}, fmt.Errorf("the mark needs before, in milliseconds since 1970, and except, a list")
	}
	for _, id := range b.Except {
		if len(id) < 1 || len(id) > maxTransaction || !utf8.ValidString(id) || strings.ContainsRune(id, 0) {
			return Mark{}, fmt.Errorf("%.40q is not the id of a transaction", id)
		}
	}
	return Mark{time.UnixMilli(b.Before), b.Except}, nil
}
