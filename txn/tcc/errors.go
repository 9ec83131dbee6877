package tcc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

var (
	// ErrNone: no transaction of that id is decided. It is Definite.
	ErrNone = errors.New("no such transaction is decided")
	// ErrMismatch: under this id there is a transaction of another type or with other
	// branches, or this process does not know a resource of it. The error is a
	// [*MismatchError].
	ErrMismatch = errors.New("it is another transaction")
	// ErrCancelled: the transaction was decided to be cancelled. The error is a
	// [*CancelledError].
	ErrCancelled = errors.New("the transaction is cancelled")
	// ErrDeadLetter: a branch has refused what was decided. The error is a
	// [*DeadLetterError].
	ErrDeadLetter = errors.New("a branch refuses what was decided")
	// ErrNoHold: the branch holds nothing that is known.
	ErrNoHold = errors.New("no hold is known")

	errLate = errors.New("the time of the holds is up")
)

// A MismatchError is an [ErrMismatch] and a Bug. Nothing was decided.
type MismatchError struct {
	ID      string
	Problem string
}

// Error says what differs, and what to do.
func (e *MismatchError) Error() string { return fmt.Sprintf("transaction %q: %s", e.ID, e.Problem) }

// Unwrap makes it an [ErrMismatch].
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// ErrorKind is [interlock.Bug].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// A CancelledError is an [ErrCancelled] and Definite: the decision stands in the
// journal, and each branch is cancelled, or will be.
type CancelledError struct {
	ID     string
	Reason string // as the journal has it
	Cause  error  // of the branch that failed first, if it was this Run that failed; else nil
}

// Error says why.
func (e *CancelledError) Error() string {
	return fmt.Sprintf("transaction %q: %v: %s", e.ID, ErrCancelled, e.Reason)
}

// Unwrap gives the sentinel, and the branch's own error.
func (e *CancelledError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrCancelled}
	}
	return []error{ErrCancelled, e.Cause}
}

// ErrorKind is [interlock.Definite].
func (e *CancelledError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A DeadLetterError is an [ErrDeadLetter] and Uncertain: repeating changes nothing, and
// a person has to look.
type DeadLetterError struct{ Outcome Outcome }

// Error names the branches.
func (e *DeadLetterError) Error() string {
	if e.Outcome.Halted != "" {
		return fmt.Sprintf("transaction %q is halted after the decision to %s: %s", e.Outcome.ID, e.Outcome.Decision, e.Outcome.Halted)
	}
	text := fmt.Sprintf("transaction %q: %v to %s", e.Outcome.ID, ErrDeadLetter, e.Outcome.Decision)
	for _, d := range e.Outcome.Dead {
		text += fmt.Sprintf("; branch %q: %s", d.Branch, d.Err)
	}
	return text
}

// Unwrap gives the sentinel.
func (e *DeadLetterError) Unwrap() error { return ErrDeadLetter }

// ErrorKind is [interlock.Uncertain].
func (e *DeadLetterError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}

func none(op, id string) error {
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Definite, Err: ErrNone}
}

// refuse tells of what the state of a transaction does not allow.
func refuse(op, id string, err error) error {
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Definite, Err: err}
}
