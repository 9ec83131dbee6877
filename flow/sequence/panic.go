package sequence

import (
	"fmt"
	"runtime/debug"

	"github.com/interlock-dev/interlock"
)

// A PanicError is the panic of a handler over an event that was held, or of a
// Fetch. What was done by then outside of the store is not known: it is Uncertain.
type PanicError struct {
	Key   string
	Value any    // what it panicked with
	Stack []byte // of the goroutine
}

// Error is one line, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("events of %q: panic: %v", e.Key, e.Value) }

// Unwrap is the value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ErrorKind is [interlock.Uncertain].
func (e *PanicError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// Is makes it an interlock.ErrUncertain.
func (e *PanicError) Is(target error) bool { return target == interlock.ErrUncertain }

// contain makes an error of a panic of the function that defers it.
func contain(key string, err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Key: key, Value: v, Stack: debug.Stack()}
	}
}
