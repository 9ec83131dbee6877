package saga

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

var (
	// ErrNone means that no saga has this id. It is Definite.
	ErrNone = coordinator.ErrNone
	// ErrMismatch means that the saga with this id has another type or input, or that its steps
	// differ from the definition's. The error is a [*MismatchError].
	ErrMismatch = coordinator.ErrMismatch
	// ErrState means that the state of the saga does not allow the operation. The error is a
	// [*StateError].
	ErrState = coordinator.ErrState
	// ErrCompensated means that the saga was undone. The error is an [*EndedError].
	ErrCompensated = errors.New("the saga was undone")
	// ErrDeadLetter means that part of the saga could not be undone, or that the saga is halted
	// because its owners crashed. The error is an [*EndedError].
	ErrDeadLetter = errors.New("part of the saga could not be undone")
	// ErrResolved means that an operator closed a dead letter. The error is an [*EndedError].
	ErrResolved = errors.New("part of the saga could not be undone, and an operator closed it")
	// ErrNoOutput means that the step has no output, because it was not done.
	ErrNoOutput = coordinator.ErrNoOutput

	errOrder = coordinator.ErrOrder
	errLate  = errors.New("the timeout of the saga has passed")
)

// A DefinitionError describes an invalid definition and how to fix it. It is a Bug.
type DefinitionError struct {
	Saga    string
	Step    string // empty if it concerns the whole
	Problem string
}

// Error names the step.
func (e *DefinitionError) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("define saga %q: %s", e.Saga, e.Problem)
	}
	return fmt.Sprintf("define saga %q: step %q: %s", e.Saga, e.Step, e.Problem)
}

// ErrorKind returns [interlock.Bug].
func (e *DefinitionError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// The errors, names and filters that all protocols share.
type (
	// MismatchError is an [ErrMismatch]; see [coordinator.MismatchError].
	MismatchError = coordinator.MismatchError
	// StateError is an [ErrState]; see [coordinator.StateError].
	StateError = coordinator.StateError
	// By names an operator and the reason of a change; see [coordinator.By].
	By = coordinator.By
	// Filter selects sagas of a list; see [coordinator.Filter].
	Filter = coordinator.Filter
	// StepError is a step with an error; see [coordinator.StepError].
	StepError = coordinator.StepError
)

// An EndedError reports a saga that did not succeed. It is an [ErrCompensated] or [ErrResolved],
// which are Definite, or an [ErrDeadLetter], which is Uncertain: repeating changes nothing, and
// an operator must act.
type EndedError struct{ Outcome Outcome }

// Error returns the reason, and the undos that failed.
func (e *EndedError) Error() string {
	if e.Outcome.Halted != "" {
		return fmt.Sprintf("saga %q is halted: %s", e.Outcome.ID, e.Outcome.Reason)
	}
	text := fmt.Sprintf("saga %q: %v: %s", e.Outcome.ID, e.Unwrap(), e.Outcome.Reason)
	for _, d := range e.Outcome.Dead {
		text += fmt.Sprintf("; the undo of %q was given up: %s", d.Step, d.Err)
	}
	if by := e.Outcome.Resolved; by.Actor != "" {
		text += fmt.Sprintf("; %s has closed it: %s", by.Actor, by.Reason)
	}
	return text
}

// Unwrap returns the sentinel.
func (e *EndedError) Unwrap() error {
	switch e.Outcome.State {
	case DeadLetter:
		return ErrDeadLetter
	case Resolved:
		return ErrResolved
	}
	return ErrCompensated
}

// ErrorKind depends on the state.
func (e *EndedError) ErrorKind() interlock.ErrorKind {
	if e.Outcome.State == DeadLetter {
		return interlock.Uncertain
	}
	return interlock.Definite
}

// Fail marks the error of a call that had no effect and never will, for a business reason: no
// seat, no money. The saga is aborted. The step itself is not undone, unless an earlier call of
// it may have had an effect. After the pivot a Fail is retried like any error. After a Fail of
// an undo the saga is a dead letter at once. Fail is branch.Fail.
func Fail(err error) error { return branch.Fail(err) }

// Retry marks the error of a call that had no effect and may succeed later: the target was busy
// or not reachable. Retry is branch.Retry.
func Retry(err error) error { return branch.Retry(err) }

// Unknown marks the error of a call whose outcome is unknown. Errors without a mark are treated
// the same. Unknown is branch.Unknown.
func Unknown(err error) error { return branch.Unknown(err) }

// InProgress reports that the target is still processing the call. The call is repeated after the
// given time with the same key, and does not count as an attempt. It is branch.InProgress.
func InProgress(after time.Duration) error { return branch.InProgress(after) }
