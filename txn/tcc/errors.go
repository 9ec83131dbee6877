package tcc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

var (
	// ErrNone means that no transaction of that id is decided. It is Definite.
	ErrNone = coordinator.ErrNone
	// ErrMismatch means that the transaction of this id has another type or other branches, or
	// that this process lacks one of its resources. The error is a [*MismatchError].
	ErrMismatch = coordinator.ErrMismatch
	// ErrState means that the state of the transaction does not allow an operator's change.
	// The error is a [*StateError].
	ErrState = coordinator.ErrState
	// ErrCancelled means that the decision is to cancel. The error is a [*CancelledError].
	ErrCancelled = errors.New("the transaction is cancelled")
	// ErrDeadLetter means that a branch refuses the decision. The error is a
	// [*DeadLetterError].
	ErrDeadLetter = errors.New("a branch refuses the decision")
	// ErrNoOutput means that the branch has no hold, or an unknown one.
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
	// By names an operator and the reason of a change; see [coordinator.By].
	By = coordinator.By
	// Filter selects transactions of a list; see [coordinator.Filter].
	Filter = coordinator.Filter
	// StepError is a branch with an error; see [coordinator.StepError].
	StepError = coordinator.StepError
)

// A CancelledError is an [ErrCancelled] and Definite: the decision is durable, and each branch is
// cancelled or will be.
type CancelledError struct {
	ID     string
	Reason string // in the journal
	Cause  error  // of the branch that failed first in this Run; nil if another Run decided
}

// Error returns the reason.
func (e *CancelledError) Error() string {
	return fmt.Sprintf("transaction %q: %v: %s", e.ID, ErrCancelled, e.Reason)
}

// Unwrap returns the sentinel and the branch's own error.
func (e *CancelledError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrCancelled}
	}
	return []error{ErrCancelled, e.Cause}
}

// ErrorKind returns [interlock.Definite].
func (e *CancelledError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A DeadLetterError is an [ErrDeadLetter] and Uncertain: repeating changes nothing, and an operator
// must act.
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

// Unwrap returns the sentinel.
func (e *DeadLetterError) Unwrap() error { return ErrDeadLetter }

// ErrorKind returns [interlock.Uncertain].
func (e *DeadLetterError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}
