package barrier

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
)

var (
	// ErrCancelled rejects a do, try or prepare that arrives after the undo of its
	// branch. Nothing was run. It is Definite, and a branch.Fail.
	ErrCancelled = errors.New("the branch was undone before")
	// ErrForgotten rejects a call whose transaction began before the mark of [Forget].
	// Nothing was run, so it is Definite. It is not a branch.Fail, because the effect of
	// earlier calls is no longer recorded.
	ErrForgotten = errors.New("the call's transaction began before the low-water mark, and its record was deleted")
	// ErrViolation is the sentinel of [ViolationError].
	ErrViolation = errors.New("the branch had the opposite decision")
)

// A RefusedError is the refusal of a do, try or prepare, returned by the first call and by all
// repetitions. It is Definite, and a branch.Fail.
type RefusedError struct {
	Reason string // the text of the function's error, at most 4 KiB
	err    error  // of the function, in the first call
}

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Reason }

// Unwrap returns the function's error in the first call, and nil in repetitions.
func (e *RefusedError) Unwrap() error { return e.err }

// ErrorKind returns [interlock.Definite].
func (e *RefusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ViolationError rejects the confirmation of a branch that was not done or was undone, and the
// undo of a branch that was confirmed. Nothing was run. It is an [ErrViolation], Definite, and a
// branch.Fail: repeating the call changes nothing, and an operator must act.
type ViolationError struct {
	Call branch.Call
	// State of the branch: "absent", "started", "tried", "refused", "doubted",
	// "confirming", "confirmed", "cancelling", "cancelled" or "blocked"; from a [Keyed]
	// "absent" or a driver.BarrierState.
	State string
}

// Error names the call and the state.
func (e *ViolationError) Error() string {
	return fmt.Sprintf("%s %q: the branch is %s: %v", e.Call.Operation, e.Call.Key(), e.State, ErrViolation)
}

// Unwrap returns [ErrViolation].
func (e *ViolationError) Unwrap() error { return ErrViolation }

// ErrorKind returns [interlock.Definite].
func (e *ViolationError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A MismatchError rejects a do, try or prepare whose input differs from that of its branch's first
// call. Nothing was run. It is a Bug of the caller, unless an operator has edited the input. It is
// a [branch.ErrOtherInput], by which a saga's coordinator detects an edit that came too late.
type MismatchError struct{ Call branch.Call }

// Error names the call.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s %q: its input differs from that of the first call of its branch", e.Call.Operation, e.Call.Key())
}

// Unwrap returns [branch.ErrOtherInput].
func (e *MismatchError) Unwrap() error { return branch.ErrOtherInput }

// ErrorKind returns [interlock.Bug].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// definite returns a rejection by the barrier.
func definite(c branch.Call, err error) error {
	return &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Definite, Err: err}
}

// withClass gives an error after which nothing was done the class Retry, unless it has a class.
func withClass(err error) error {
	if err == nil || interlock.Kind(err) != interlock.Retryable {
		return err
	}
	if class, _ := branch.ClassOf(err); class != branch.ClassUnknown {
		return err
	}
	return branch.Retry(err)
}
