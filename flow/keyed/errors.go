package keyed

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A FullError says that a task was not taken, because as many are queued as may
// be. It is Retryable.
type FullError struct {
	Key    string
	All    bool // it is not the key that has too many, but all keys together
	Queued int  // by the key, or by all
}

// Error says what is full.
func (e *FullError) Error() string {
	if e.All {
		return fmt.Sprintf("queue task of %q: the executor is full, %d tasks are queued", e.Key, e.Queued)
	}
	return fmt.Sprintf("queue task of %q: the key is full, %d tasks are queued", e.Key, e.Queued)
}

// ErrorKind is [interlock.Retryable].
func (e *FullError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A PanicError is the panic of a task, as its submitter receives it. What the task had
// done by then is unknown: it is Uncertain.
type PanicError struct {
	Key   string
	Value any    // what it panicked with; nil if it ended its goroutine, as testing's FailNow does
	Stack []byte // of the goroutine
}

// Error is one line, without the stack.
func (e *PanicError) Error() string {
	if e.Value == nil {
		return fmt.Sprintf("task of %q ended its goroutine", e.Key)
	}
	return fmt.Sprintf("task of %q panicked: %v", e.Key, e.Value)
}

// Unwrap is the value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ErrorKind is [interlock.Uncertain].
func (e *PanicError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// Is makes it an interlock.ErrUncertain.
func (e *PanicError) Is(target error) bool { return target == interlock.ErrUncertain }

// Each is the error of a batch whose tasks have outcomes of their own: one for each
// task, in their order, nil for those that succeeded.
type BatchError []error

// Error joins them.
func (e BatchError) Error() string { return fmt.Sprintf("batch: %v", errors.Join(e...)) }

// Unwrap gives those that are not nil.
func (e BatchError) Unwrap() []error {
	var failed []error
	for _, err := range e {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// checkKey refuses what cannot be a key.
func checkKey(op, key string) error {
	if key == "" || len(key) > driver.MaxName {
		return &interlock.Error{Op: op, Name: key[:min(len(key), 64)], Kind: interlock.Bug,
			Err: fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(key), driver.MaxName)}
	}
	return nil
}

func bug(op, key string, err error) error {
	return &interlock.Error{Op: op, Name: key, Kind: interlock.Bug, Err: err}
}

// neverRan is the error of what was given up before it began.
func neverRan(op, key string, why error) error {
	return &interlock.Error{Op: op, Name: key, Kind: interlock.Definite, Err: fmt.Errorf("it never ran: %w", why)}
}

// ended says that ctx has.
func ended(op, key string, ctx context.Context) error { return neverRan(op, key, context.Cause(ctx)) }
