package idempotency

import (
	"errors"
	"fmt"
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
	return fmt.Sprintf("request %q is in flight: attempt %d is at work on it", e.Key, e.Attempt)
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
	return fmt.Sprintf("request %q was carried out, with status %d, but its answer was too large to be kept (SHA-256 %s)",
		e.Key, e.Status, e.Digest)
}

// ErrorKind returns [interlock.Definite].
func (e *NotKeptError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ofKind changes the kind of err from was to is.
func ofKind(err error, was, is interlock.ErrorKind) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Kind != was {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: is, Err: e.Err}
}
