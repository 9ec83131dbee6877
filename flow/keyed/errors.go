package keyed

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A FullError means that a task was rejected because a queue is at its bound. It is Retryable.
type FullError struct {
	Key    string
	All    bool // the bound of all keys together is reached, not that of the key
	Queued int  // tasks of the key, or of all keys
}

// Error says which bound is reached.
func (e *FullError) Error() string {
	if e.All {
		return fmt.Sprintf("queue task of %q: the executor is full, %d tasks are queued", e.Key, e.Queued)
	}
	return fmt.Sprintf("queue task of %q: the key is full, %d tasks are queued", e.Key, e.Queued)
}

// ErrorKind is [interlock.Retryable].
func (e *FullError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A PanicError is the panic of a task, as its submitter receives it. It is unknown what the task
// did before: the error is Uncertain.
type PanicError struct {
	Key   string
	Value any    // of the panic; nil if the task ended its goroutine, as testing's FailNow does
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

// A BatchError is the error of a batch whose tasks have outcomes of their own: one for each task,
// in order, nil for those that succeeded.
type BatchError []error

// Error joins the errors.
func (e BatchError) Error() string { return fmt.Sprintf("batch: %v", errors.Join(e...)) }

// Unwrap returns the errors that are not nil.
func (e BatchError) Unwrap() []error {
	var failed []error
	for _, err := range e {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// checkKey rejects a key of an invalid length.
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

// neverRan is the error of a task that was dropped before it began.
func neverRan(op, key string, why error) error {
	return &interlock.Error{Op: op, Name: key, Kind: interlock.Definite, Err: fmt.Errorf("it never ran: %w", why)}
}

// ended is the error of a task whose context has ended.
func ended(op, key string, ctx context.Context) error { return neverRan(op, key, context.Cause(ctx)) }
