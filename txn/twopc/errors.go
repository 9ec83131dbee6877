package twopc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

var (
	// ErrAborted means that the transaction had no effect. The error is an [*AbortedError].
	ErrAborted = errors.New("the transaction was aborted")
	// ErrNone means that the journal has no transaction of that id. It is Definite.
	ErrNone = coordinator.ErrNone
	// ErrDecided means that the transaction has another decision. It is Definite.
	ErrDecided = errors.New("the transaction is already decided")
	// ErrMismatch means that this id belongs to a transaction of another package, or that
	// another id has the same key. The error is a [*MismatchError].
	ErrMismatch = coordinator.ErrMismatch
	// ErrState means that the state of the transaction does not allow an operator's change.
	// The error is a [*StateError].
	ErrState = coordinator.ErrState
	// ErrHeuristic means that a participant finished its branch against the decision; see
	// [driver.ErrHeuristic].
	ErrHeuristic = driver.ErrHeuristic
	// ErrHalted means that several owners of the transaction crashed in a row. It waits for
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
	// By names an operator and the reason of a change; see [coordinator.By].
	By = coordinator.By
	// Filter selects transactions of a list; see [coordinator.Filter].
	Filter = coordinator.Filter
	// StepError is a branch with an error; see [coordinator.StepError].
	StepError = coordinator.StepError
)

// An AbortedError is an [ErrAborted]: all branches of this run are rolled back, or will be. Unless
// Recorded is set, another run can use the same id. It is Retryable if another run may succeed, and
// otherwise Definite.
type AbortedError struct {
	ID     string
	Reason error // of the function or of a participant; in the chain of errors
	// Recorded means that the abort is in the journal: the same work needs another id.
	Recorded bool
}

// Error returns the reason.
func (e *AbortedError) Error() string {
	return fmt.Sprintf("transaction %q: %v: %v", e.ID, ErrAborted, e.Reason)
}

// Unwrap returns the sentinel and the reason.
func (e *AbortedError) Unwrap() []error { return []error{ErrAborted, e.Reason} }

// ErrorKind returns [interlock.Retryable] if the reason is Retryable, such as a deadlock, and the
// abort is not Recorded. Otherwise it returns [interlock.Definite].
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
