// Package branch defines the terms of coordinators and participants: the identity of a call, and
// the classes of its errors. It does not make calls idempotent: without a barrier (txn/barrier) a
// participant repeats effects, or applies them after their undo.
//
//	func charge(ctx context.Context, o Order) (Receipt, error) {
//		c := branch.From(ctx)                          // transaction, branch, epoch, deadline
//		receipt, err := bank.Charge(ctx, c.Key(), o.Total)
//		switch {
//		case errors.Is(err, bank.ErrNoMoney):
//			return Receipt{}, branch.Fail(err)          // no effect, now or later
//		case errors.Is(err, bank.ErrBusy):
//			return Receipt{}, branch.Retry(err)         // no effect yet
//		}
//		return receipt, err                            // any other error: unknown
//	}
//
// Calls are delivered at least once, and possibly late: after a later call, or from a former
// coordinator. Their key, operation and epoch distinguish them.
package branch

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/interlock-dev/interlock"
)

// Operation is the operation that a call requests.
type Operation string

// The operations: do and undo of a saga's step; try, then confirm or cancel, of a branch of a TCC
// transaction; prepare, then commit or roll back, of a branch of a two-phase commit.
const (
	Do       Operation = "do"
	Undo     Operation = "undo"
	Try      Operation = "try"
	Confirm  Operation = "confirm"
	Cancel   Operation = "cancel"
	Prepare  Operation = "prepare"
	Commit   Operation = "commit"
	Rollback Operation = "rollback"
)

// A Call is one call of a participant.
type Call struct {
	Transaction string    // its id, 1 to driver.MaxTransaction bytes
	Branch      string    // of the transaction: a saga's step, a resource; 1 to 255 bytes
	Step        string    // of the branch, where it has several: an index; usually empty, at most 255 bytes
	Operation   Operation // the requested one
	Attempt     int       // from 1, counted by the coordinator that calls
	// Epoch is the token of the coordinator's claim, 0 without one. A resource with a guard can
	// refuse lower ones. A participant with a barrier need not.
	Epoch interlock.Token
	// Begun is when the transaction began, in whole milliseconds. In calls of one
	// transaction it differs by at most driver.BarrierSpread: by the callers' clocks,
	// or because a TCC runs again. A participant may delete the records of
	// transactions that began before the coordinator's low-water mark, and refuses
	// their calls.
	Begun time.Time
	// Deadline is when the caller stops waiting for the answer; zero means never.
	Deadline time.Time
	// Until is when a try's hold expires, in whole milliseconds; zero in all other
	// calls. After it the participant asks the coordinator.
	Until time.Time
}

// Key returns the idempotency key: the same for all calls that must have one effect, and for no
// others.
func (c Call) Key() string {
	key := url.PathEscape(c.Transaction) + "/" + url.PathEscape(c.Branch)
	if c.Step != "" {
		key += "/" + url.PathEscape(c.Step)
	}
	return key + "/" + string(c.Operation)
}

type callKey struct{}

// With returns a context with a call, for [From].
func With(ctx context.Context, c Call) context.Context { return context.WithValue(ctx, callKey{}, c) }

// From returns the call that ctx belongs to, or the zero Call.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// Class is the meaning of a participant's error.
type Class int

// The classes. An error without a mark, such as one of the network, is Unknown.
const (
	ClassUnknown    Class = iota // the outcome is unknown
	ClassFail                    // the call had no effect, and never will
	ClassRetry                   // the call had no effect; it may succeed later
	ClassInProgress              // the participant is processing it
)

// String returns the class's name in lower case.
func (c Class) String() string {
	switch c {
	case ClassFail:
		return "fail"
	case ClassRetry:
		return "retry"
	case ClassInProgress:
		return "ongoing"
	}
	return "unknown"
}

// ErrOtherInput means that the participant has applied a do, try or prepare of this branch with
// another input. The outcome of that call counts, and this input is not used. Its class is
// Unknown: a coordinator that has changed the input repeats the call with the former one.
var ErrOtherInput = errors.New("the participant applied this call with another input")

// classified is an error with a class.
type classified struct {
	class Class
	after time.Duration
	err   error
}

func (c *classified) Error() string { return c.err.Error() }
func (c *classified) Unwrap() error { return c.err }

// Fail marks the error of a call that had no effect and never will, for a business reason: no
// seat, no money. Fail(nil) is nil.
func Fail(err error) error { return classify(ClassFail, 0, err) }

// Retry marks the error of a call that had no effect and may succeed later: the target was busy
// or not reachable. If err has a method RetryAfter() time.Duration, the next call waits for that
// long at least, up to the longest pause of its policy; so with Unknown. Retry(nil) is nil.
func Retry(err error) error { return classify(ClassRetry, 0, err) }

// Unknown marks the error of a call whose outcome is unknown. Errors without a mark are treated
// the same. Unknown(nil) is nil.
func Unknown(err error) error { return classify(ClassUnknown, 0, err) }

// InProgress reports that the target is still processing the call. The call is repeated after the
// given time with the same key, and does not count as an attempt.
func InProgress(after time.Duration) error {
	return classify(ClassInProgress, after, errors.New("the target is still processing the call"))
}

func classify(class Class, after time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &classified{class, after, err}
}

// ClassOf returns the outermost mark of err, and the delay before the next call that the participant
// asks for: by InProgress, or by an error with a method RetryAfter() time.Duration; else 0.
func ClassOf(err error) (class Class, after time.Duration) {
	if err == nil {
		return ClassUnknown, 0
	}
	var c *classified
	if errors.As(err, &c) {
		class, after = c.class, c.after
	}
	var asks interface{ RetryAfter() time.Duration }
	if class != ClassInProgress && errors.As(err, &asks) {
		after = asks.RetryAfter()
	}
	return class, after
}
