package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
)

// An InFlightError means that another attempt is executing the request. It wraps
// [interlock.ErrHeld] and is Retryable.
type InFlightError struct {
	Key     string
	Attempt int // the number of the running attempt
	// Remaining is the rest of the lease, which a live attempt renews. If the attempt has
	// crashed, a retry can begin after that time.
	Remaining time.Duration
}

// Error returns a message with the key.
func (e *InFlightError) Error() string {
	return fmt.Sprintf("request %q is in flight: attempt %d is running", e.Key, e.Attempt)
}

// Unwrap returns interlock.ErrHeld.
func (e *InFlightError) Unwrap() error { return interlock.ErrHeld }

// ErrorKind returns [interlock.Retryable].
func (e *InFlightError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A MismatchError means that the key was used for a request with another fingerprint. It is
// Definite.
type MismatchError struct{ Key string }

// Error returns a message with the key.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("key %q was used for another request", e.Key)
}

// ErrorKind returns [interlock.Definite].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A NotKeptError means that the request was executed, and that its answer was too large to be
// stored. The request is not executed again. The error is Definite.
type NotKeptError struct {
	Key    string
	Status int    // of the answer
	Digest string // SHA-256 of its body, in hexadecimal digits
}

// Error returns a message with the status and the digest of the answer.
func (e *NotKeptError) Error() string {
	return fmt.Sprintf("request %q was executed, with status %d, but its answer was too large to be stored (SHA-256 %s)",
		e.Key, e.Status, e.Digest)
}

// ErrorKind returns [interlock.Definite].
func (e *NotKeptError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ofKind changes the kind of err from was to kind.
func ofKind(err error, was, kind interlock.ErrorKind) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Kind != was {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: kind, Err: e.Err}
}

const problemMedia = "application/problem+json"

// problem is a body of problemMedia, as in RFC 9457. Reason is for programs and
// never changes.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Reason string `json:"reason"`

	retry time.Duration // 0 sends no Retry-After
}

// problemOf returns the problem for an error, without internal details.
func problemOf(err error, patience time.Duration) problem {
	var busy *InFlightError
	var mismatch *MismatchError
	var unkept *NotKeptError
	switch {
	case errors.As(err, &busy):
		return problem{Title: "A request with this key is in flight", Status: http.StatusConflict, Reason: "in-flight",
			Detail: "Try again later to have its answer.", retry: max(1, min(patience, busy.Remaining))}
	case errors.As(err, &mismatch):
		return problem{Title: "The key was used for another request", Status: http.StatusUnprocessableEntity, Reason: "mismatch",
			Detail: "A retry must be the same as the first request. Choose another key for another request."}
	case errors.As(err, &unkept):
		return problem{Title: "The answer was not kept", Status: http.StatusConflict, Reason: "answer-not-kept",
			Detail: "The request was carried out, with status " + strconv.Itoa(unkept.Status) +
				", but its answer was too large to be kept. The SHA-256 of its body is " + unkept.Digest + "."}
	case errors.Is(err, interlock.ErrLost):
		return problem{Title: "Another attempt has taken over", Status: http.StatusConflict, Reason: "overtaken",
			Detail: "Try again to have its answer.", retry: patience}
	case interlock.Kind(err) == interlock.Bug:
		return problem{Title: "The request cannot be recorded", Status: http.StatusInternalServerError, Reason: "bug"}
	case interlock.Kind(err) == interlock.Uncertain:
		return problem{Title: "The outcome is not known", Status: http.StatusServiceUnavailable, Reason: "outcome-unknown",
			Detail: "The request may have been carried out. Try again with the same key to find out.", retry: patience}
	}
	return problem{Title: "The request cannot be recorded now", Status: http.StatusServiceUnavailable, Reason: "store-unavailable",
		Detail: "Try again with the same key.", retry: patience}
}

// write sends the problem. docs is the page that explains the reasons.
func (p problem) write(w http.ResponseWriter, docs string) {
	p.Type = "about:blank"
	if docs != "" {
		p.Type = docs + "#" + p.Reason
	}
	w.Header().Set("Content-Type", problemMedia)
	if p.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retry.Seconds()))))
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // a disconnected client retries
}
