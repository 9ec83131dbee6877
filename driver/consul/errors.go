package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

const fail = failure.Driver(driverName)

// StatusError is an answer of Consul without success. It is in the chain of errors.
type StatusError struct {
	Code int    // of HTTP
	Text string // the beginning of the answer
}

// Error returns the code and the text.
func (e *StatusError) Error() string {
	return fmt.Sprintf("consul answered %d: %s", e.Code, e.Text)
}

// refusal is a transaction that was rolled back: the reasons, by number of the failed operation.
type refusal struct{ why map[int]string }

func (r *refusal) Error() string { return fmt.Sprintf("consul rolled the transaction back: %v", r.why) }

// ConflictError means that a key of a lock holds something else, such as a semaphore
// of Consul's own clients or data. It is Definite.
type ConflictError struct {
	Key   string
	Flags uint64
}

// Error includes the remedy.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("the key %q holds something else than a lock (flags %#x): use another name, or delete the key if it is unused", e.Key, e.Flags)
}

// kindOf classifies an error of a request that was sent. A server that reports its own
// failure may have written.
func kindOf(err error) interlock.ErrorKind {
	var status *StatusError
	var rolledBack *refusal
	switch {
	case driver.NeverSent(err):
		return interlock.Retryable
	case errors.As(err, &rolledBack):
		return interlock.Definite
	case !errors.As(err, &status):
		return interlock.Uncertain
	case status.Code == http.StatusTooManyRequests, strings.Contains(status.Text, "No cluster leader"):
		return interlock.Retryable // nothing was proposed
	case status.Code < http.StatusInternalServerError, strings.Contains(status.Text, "Invalid Session TTL"):
		return interlock.Definite
	}
	return interlock.Uncertain
}

// failed wraps the error of a request that was sent under ctx.
func failed(ctx context.Context, op, name string, err error) error {
	return fail.New(op, name, kindOf(err), driver.WithCause(ctx, err))
}

// unread wraps the error like failed, for a request that only reads, or whose effect does not
// matter to the caller: no outcome is uncertain.
func unread(ctx context.Context, op, name string, err error) error {
	kind := kindOf(err)
	if kind == interlock.Uncertain {
		kind = interlock.Retryable
	}
	return fail.New(op, name, kind, driver.WithCause(ctx, err))
}

// uncertain returns the error of a later request in a call whose earlier request has an
// unknown outcome.
func uncertain(op, name string, err error) error {
	return fail.New(op, name, interlock.Uncertain, errors.Unwrap(err))
}

func refused(op, name string, err error) error { return fail.New(op, name, interlock.Bug, err) }

var (
	errSlow       = errors.New("consul did not answer in time")
	errTimeRanOut = errors.New("no renewal was confirmed in time")
	errOthers     = errors.New("other clients kept changing the key")
)
