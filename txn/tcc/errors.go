package tcc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

var (
	// ErrNone: no transaction of that id is decided. It is Definite.
	ErrNone = coordinator.ErrNone
	// ErrMismatch: under this id there is a transaction of another type or with other
	// branches, or this process does not know a resource of it. The error is a
	// [*MismatchError].
	ErrMismatch = coordinator.ErrMismatch
	// ErrState: the state of the transaction does not allow what an operator wants. The
	// error is a [*StateError].
	ErrState = coordinator.ErrState
	// ErrCancelled: the transaction was decided to be cancelled. The error is a
	// [*CancelledError].
	ErrCancelled = errors.New("the transaction is cancelled")
	// ErrDeadLetter: a branch has refused what was decided. The error is a
	// [*DeadLetterError].
	ErrDeadLetter = errors.New("a branch refuses what was decided")
	// ErrNoOutput: the branch holds nothing that is known.
	ErrNoOutput = coordinator.ErrNoOutput

	errOrder = coordinator.ErrOrder
	errLate  = errors.New("the holds have expired")
)

// The errors, names and filters that all protocols share.
type (
	// MismatchError is an [ErrMismatch]; see [coordinator.MismatchError].
	MismatchError = coordinator.MismatchError
	// StateError is an [ErrState]; see [coordinator.StateError].
	StateError = coordinator.StateError
	// By is who changes a transaction by hand, and the reason; see [coordinator.By].
	By = coordinator.By
	// Filter says which transactions are listed; see [coordinator.Filter].
	Filter = coordinator.Filter
	// StepError is a branch with an error; see [coordinator.StepError].
	StepError = coordinator.StepError
)

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
		text += fmt.Sprintf("; branch %q: %s", d.Step, d.Err)
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
