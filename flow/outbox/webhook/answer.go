package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// A StatusError is an answer with a status other than 2xx.
type StatusError struct {
	Status int
	Body   string // its beginning
	after  time.Duration
}

// Error has the status and the beginning of the body.
func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("answered %d %s: %s", e.Status, http.StatusText(e.Status), e.Body))
}

// RetryAfter is the pause that the receiver requests; 0 means none.
func (e *StatusError) RetryAfter() time.Duration { return e.after }

// verdict returns the error of an answer; nil if the message was accepted.
func verdict(id string, r *http.Response, body []byte, now time.Time) error {
	if r.StatusCode >= 200 && r.StatusCode < 300 {
		return nil
	}
	kind := interlock.Retryable
	if r.StatusCode >= 400 && r.StatusCode < 500 {
		kind = interlock.Definite
	}
	switch r.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		kind = interlock.Retryable
	}
	return problem(id, kind, &StatusError{r.StatusCode, string(body), retryAfter(r.Header.Get("retry-after"), now)})
}

// retryAfter parses seconds or a date. An invalid value and a past date are 0.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil && seconds < 1<<31 {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// unanswered returns the kind of error of a request without an answer: Retryable if there was no
// connection.
func unanswered(err error) interlock.ErrorKind {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return interlock.Retryable
	}
	return interlock.Uncertain
}

func problem(id string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "post", Driver: "webhook", Name: id, Kind: kind, Err: err}
}
