package twopc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

var (
	// ErrAborted: the transaction had no effect. The error is an [*AbortedError].
	ErrAborted = errors.New("the transaction was aborted")
	// ErrNone: the journal has no transaction of that id. It is Definite.
	ErrNone = coordinator.ErrNone
	// ErrDecided: what is decided cannot be decided otherwise. It is Definite.
	ErrDecided = errors.New("it is decided already")
	// ErrMismatch: under this id there is something that is no transaction of this package,
	// or another one with the same key. The error is a [*MismatchError].
	ErrMismatch = coordinator.ErrMismatch
	// ErrState: the state of the transaction does not allow what an operator wants. The
	// error is a [*StateError].
	ErrState = coordinator.ErrState
	// ErrHeuristic: a participant finished its branch against the decision; see
	// [driver.ErrHeuristic].
	ErrHeuristic = driver.ErrHeuristic
	// ErrHalted: owners of the transaction crashed, one after the other, and it waits for
	// [Operator.Retry].
	ErrHalted = errors.New("the transaction is halted")

	errOrder = coordinator.ErrOrder
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
