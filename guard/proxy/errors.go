package proxy

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// A DoneError means that the call was made before and answered. It was not sent again. It is
// Definite.
type DoneError struct {
	Resource, Operation string
	Status              int // of the answer
}

// Error returns a message with the call and the status of its answer.
func (e *DoneError) Error() string {
	return fmt.Sprintf("call %q of %q: it was made before and answered with status %d", e.Operation, e.Resource, e.Status)
}

// ErrorKind returns [interlock.Definite].
func (e *DoneError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// An InDoubtError means that an earlier attempt may have sent the call, without an answer that
// settled it. The call was not sent again. The error is Uncertain until [Calls.Settle] records
// the result.
type InDoubtError struct {
	Resource, Operation string
	Status              int // of the last answer, such as 503; 0 without an answer
}

// Error returns a message with the call.
func (e *InDoubtError) Error() string {
	return fmt.Sprintf("call %q of %q: an earlier attempt may have been made (last status %d), and is not repeated without an idempotency key",
		e.Operation, e.Resource, e.Status)
}

// ErrorKind returns [interlock.Uncertain].
func (e *InDoubtError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// Unwrap returns [interlock.ErrUncertain].
func (e *InDoubtError) Unwrap() error { return interlock.ErrUncertain }

// unsent returns the error of a call that was certainly not sent. If err is Uncertain, the
// doubt concerns only the mark or the record, so the call is Retryable.
func unsent(err error) error {
	if _, found := errors.AsType[*InDoubtError](err); err == nil || found || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return notSent("make call", err)
}

// notSent returns a Retryable error that states that nothing was sent.
func notSent(op string, err error) error {
	return &interlock.Error{Op: op, Kind: interlock.Retryable, Err: fmt.Errorf("it was not sent: %w", plain{err})}
}

// plain hides only that an error is an ErrUncertain.
type plain struct{ err error }

func (p plain) Error() string { return p.err.Error() }

func (p plain) Is(target error) bool {
	return target != interlock.ErrUncertain && errors.Is(p.err, target)
}

func (p plain) As(target any) bool { return errors.As(p.err, target) }
