package kube

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// kindOf classifies an error of a request that was sent. A refusal of the API
// server means that nothing was written; a server that reports its own failure or a
// timeout may have written.
func kindOf(err error) interlock.ErrorKind {
	switch {
	case driver.NeverSent(err):
		return interlock.Retryable
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsTooManyRequests(err):
		return interlock.Retryable
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err),
		apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsMethodNotSupported(err),
		apierrors.IsNotAcceptable(err), apierrors.IsUnsupportedMediaType(err), apierrors.IsRequestEntityTooLargeError(err):
		return interlock.Definite
	}
	return interlock.Uncertain
}

// failed wraps the error of a request that was sent under ctx.
func failed(ctx context.Context, op, name string, err error) error {
	return problem(op, name, kindOf(err), driver.WithCause(ctx, err))
}

// unread wraps the error like failed, for a request that only reads, so that nothing is uncertain.
func unread(ctx context.Context, op, name string, err error) error {
	err = failed(ctx, op, name, err)
	if interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return problem(op, name, interlock.Retryable, errors.Unwrap(err))
}

// doubtful returns the error of a read in a call whose earlier write has an unknown
// outcome.
func doubtful(op, name string, err error) error {
	return problem(op, name, interlock.Uncertain, errors.Unwrap(err))
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: driverName, Name: name, Kind: kind, Err: err}
}

func refused(op, name string, err error) error { return problem(op, name, interlock.Bug, err) }

func errClosed(op, name string) error { return refused(op, name, interlock.ErrClosed) }

// moved reports whether an object had changed since it was read.
func moved(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

var (
	errSlow   = errors.New("the API server did not answer in time")
	errOthers = errors.New("other clients kept changing the Lease")
)
