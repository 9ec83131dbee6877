package barrier

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
)

var (
	// ErrCancelled refuses a do, try or prepare that comes after the undo of its
	// branch. Nothing was run. It is Definite, and a branch.Fail.
	ErrCancelled = errors.New("the branch was undone before")
	// ErrForgotten refuses a call whose transaction began before the mark of
	// [Forget]. Nothing was run. It is Definite as far as this call goes; what an
	// earlier one did is not known any more, so that it is not a branch.Fail.
	ErrForgotten = errors.New("the call's transaction began before the low-water mark, and its record was deleted")
	// ErrViolation is what a [ViolationError] is.
	ErrViolation = errors.New("the branch was decided otherwise")
)

// A RefusedError is the refusal of a do, try or prepare, at the first call and at
// all that follow. It is Definite, and a branch.Fail.
type RefusedError struct {
	Reason string // what the function's error said, cut off after 4 KiB
	err    error  // the function's, at the call that it refused
}

// Error is the reason.
func (e *RefusedError) Error() string { return e.Reason }

// Unwrap is the function's own error at the call that it refused, nil at those that
// follow.
func (e *RefusedError) Unwrap() error { return e.err }

// ErrorKind is [interlock.Definite].
func (e *RefusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ViolationError tells that a branch is to be confirmed that was not done or was
// undone, or to be undone though it was confirmed. Nothing was run. It is an
// [ErrViolation], Definite, and a branch.Fail: repeating the call changes nothing,
// and somebody has to look.
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

// Unwrap makes it an [ErrViolation].
func (e *ViolationError) Unwrap() error { return ErrViolation }

// ErrorKind is [interlock.Definite].
func (e *ViolationError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A MismatchError tells that a do, try or prepare is not the one that its branch
// remembers: its input is another. Nothing was run. It is a Bug of the caller's, unless
// that has changed the input: it is a [branch.ErrOtherInput], by which a saga's
// coordinator finds out that an operator's edit came too late.
type MismatchError struct{ Call branch.Call }

// Error names the call.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s %q: it comes with another input than the first call of its branch", e.Call.Operation, e.Call.Key())
}

// Unwrap makes it a [branch.ErrOtherInput].
func (e *MismatchError) Unwrap() error { return branch.ErrOtherInput }

// ErrorKind is [interlock.Bug].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// definite returns a rejection by the barrier.
func definite(c branch.Call, err error) error {
	return &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Definite, Err: err}
}

// retryable returns an error after which the call can be repeated: nothing was done.
func retryable(c branch.Call, why string) error {
	return &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Retryable, Err: errors.New(why)}
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
