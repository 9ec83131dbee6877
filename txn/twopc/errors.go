package twopc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

var (
	// ErrAborted: the transaction had no effect. The error is an [*AbortedError].
	ErrAborted = errors.New("the transaction was aborted")
	// ErrNone: the journal has no transaction of that id. It is Definite.
	ErrNone = errors.New("there is no such transaction in the journal")
	// ErrDecided: what is decided cannot be decided otherwise. It is Definite.
	ErrDecided = errors.New("it is decided already")
	// ErrOther: under this id there is something that is no transaction of this
	// package. It is a Bug.
	ErrOther = errors.New("the id belongs to a transaction of another kind")
)

// An AbortedError is an [ErrAborted]: nothing of this run is left, or it will be taken
// back. Another run may be made under the same id, unless Recorded. It is Retryable if
// that may well come through, and else Definite.
type AbortedError struct {
	ID     string
	Reason error // what the function or a participant said; in the chain of errors
	// Recorded says that the abort stands in the journal: the id is used up, and the
	// same work needs another one.
	Recorded bool
}

// Error says why.
func (e *AbortedError) Error() string {
	return fmt.Sprintf("transaction %q: %v: %v", e.ID, ErrAborted, e.Reason)
}

// Unwrap gives the sentinel and the reason.
func (e *AbortedError) Unwrap() []error { return []error{ErrAborted, e.Reason} }

// ErrorKind is [interlock.Retryable] if the reason is, as a deadlock or what another one
// holds, and the abort is not Recorded. It is [interlock.Definite] otherwise.
func (e *AbortedError) ErrorKind() interlock.ErrorKind {
	if !e.Recorded && interlock.Kind(e.Reason) == interlock.Retryable {
		return interlock.Retryable
	}
	return interlock.Definite
}

func definite(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: err}
}

func uncertain(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Uncertain, Err: err}
}

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}
