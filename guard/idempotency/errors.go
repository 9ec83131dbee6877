package idempotency

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// An InFlightError refuses a request that another attempt is at work on. It is an
// [interlock.ErrHeld] and Retryable.
type InFlightError struct {
	Key     string
	Attempt int // that is at work
	// Remaining is what its lease has left. It is renewed as long as the attempt is
	// at work; if that has died, a retry will be let in by then.
	Remaining time.Duration
}

// Error names the key.
func (e *InFlightError) Error() string {
	return fmt.Sprintf("request %q is in flight: attempt %d is at work on it", e.Key, e.Attempt)
}

// Unwrap makes it an interlock.ErrHeld.
func (e *InFlightError) Unwrap() error { return interlock.ErrHeld }

// ErrorKind is Retryable.
func (e *InFlightError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A MismatchError refuses a request whose key stands for another one: its
// fingerprint is not that of the first. It is Definite.
type MismatchError struct{ Key string }

// Error names the key.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("key %q was used for another request", e.Key)
}

// ErrorKind is Definite.
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A NotKeptError says that the request was carried out, and that its answer was
// too large to be kept. It is not carried out again. It is Definite.
type NotKeptError struct {
	Key    string
	Status int    // of the answer
	Digest string // SHA-256 of its body, in hexadecimal digits
}

// Error says what is known of the answer.
func (e *NotKeptError) Error() string {
	return fmt.Sprintf("request %q was carried out, with status %d, but its answer was too large to be kept (SHA-256 %s)",
		e.Key, e.Status, e.Digest)
}

// ErrorKind is Definite.
func (e *NotKeptError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ofKind makes an error of one kind that of another.
func ofKind(err error, was, is interlock.ErrorKind) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Kind != was {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: is, Err: e.Err}
}
