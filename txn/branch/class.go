package branch

import (
	"errors"
	"time"
)

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
// or not reachable. Retry(nil) is nil.
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

// ClassOf returns the outermost mark of err, and for InProgress the delay before the next call.
func ClassOf(err error) (class Class, after time.Duration) {
	if err == nil {
		return ClassUnknown, 0
	}
	var c *classified
	if errors.As(err, &c) {
		return c.class, c.after
	}
	return ClassUnknown, 0
}
