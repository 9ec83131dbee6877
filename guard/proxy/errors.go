package proxy

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// A DoneError is a call that was made before, and answered: it was not sent
// again. It is Definite.
type DoneError struct {
	Resource, Operation string
	Status              int // of the answer
}

// Error names the call and the answer.
func (e *DoneError) Error() string {
	return fmt.Sprintf("call %q of %q: it was made before and answered with status %d", e.Operation, e.Resource, e.Status)
}

// ErrorKind is [interlock.Definite].
func (e *DoneError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// An InDoubtError is a call that an earlier attempt may have sent, without an
// answer that settled it. It was not sent again. It is Uncertain, and stays so
// until somebody finds out and tells [Calls.Settle].
type InDoubtError struct {
	Resource, Operation string
	Status              int // of the last answer, such as 503; 0 if there was none
}

// Error names the call.
func (e *InDoubtError) Error() string {
	return fmt.Sprintf("call %q of %q: an earlier attempt may have been made (last status %d), and is not repeated without an idempotency key",
		e.Operation, e.Resource, e.Status)
}

// ErrorKind is [interlock.Uncertain].
func (e *InDoubtError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// Unwrap makes it an [interlock.ErrUncertain].
func (e *InDoubtError) Unwrap() error { return interlock.ErrUncertain }

// unsent is why a call was certainly not sent: what is not known of err then
// concerns only the mark, or the record, and trying again is safe.
func unsent(err error) error {
	var doubt *InDoubtError
	if err == nil || errors.As(err, &doubt) || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return notSent("make call", err)
}

// notSent says so, and that it is worth trying again.
func notSent(op string, err error) error {
	return &interlock.Error{Op: op, Kind: interlock.Retryable, Err: fmt.Errorf("it was not sent: %w", plain{err})}
}

// plain hides that an error is an ErrUncertain, and nothing else.
type plain struct{ err error }

func (p plain) Error() string { return p.err.Error() }

func (p plain) Is(target error) bool {
	return target != interlock.ErrUncertain && errors.Is(p.err, target)
}

func (p plain) As(target any) bool { return errors.As(p.err, target) }
