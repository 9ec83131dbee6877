package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/group"
)

// kindOf classifies the error of a request that was sent. The request had no effect only if the
// server refused it before it proposed anything. The status "unavailable" may mean a lost reply.
func kindOf(err error) interlock.ErrorKind {
	var refused rpctypes.EtcdError
	if !errors.As(err, &refused) {
		return interlock.Uncertain
	}
	switch refused.Code() {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.NotFound, codes.OutOfRange:
		return interlock.Definite
	case codes.ResourceExhausted:
		if errors.Is(err, rpctypes.ErrTooManyRequests) {
			return interlock.Retryable
		}
		return interlock.Definite // out of space
	case codes.Unavailable:
		if errors.Is(err, rpctypes.ErrNoLeader) {
			return interlock.Retryable
		}
	}
	return interlock.Uncertain
}

// connected waits for a connection, within the bound of a request. If the client waited, it would
// be unknown whether the request was sent.
func (d *Driver) connected(ctx context.Context, op, what string) error {
	conn := d.client.ActiveConnection()
	if conn == nil {
		return nil // it is in the server's process
	}
	state := conn.GetState()
	if !isConnecting(state) {
		return nil
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	for ; isConnecting(state); state = conn.GetState() {
		if !conn.WaitForStateChange(rctx, state) {
			return problem(op, what, interlock.Retryable, fmt.Errorf("no connection to etcd: %w", context.Cause(rctx)))
		}
	}
	return nil
}

func isConnecting(state connectivity.State) bool {
	return state == connectivity.Connecting || state == connectivity.TransientFailure
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: driverName, Name: name, Kind: kind, Err: err}
}

// unsent returns the error of a call whose ctx had ended before.
func unsent(ctx context.Context, op, what string) error {
	return problem(op, what, interlock.Definite, context.Cause(ctx))
}

// failed wraps the error of a request that was sent under ctx.
func failed(ctx context.Context, op, what string, err error) error {
	switch {
	case errors.Is(err, interlock.ErrClosed):
		return errClosed(op, what)
	case errors.Is(err, group.ErrUnsent) && errors.Is(context.Cause(ctx), errSlow):
		return problem(op, what, interlock.Retryable, errSlow)
	case errors.Is(err, group.ErrUnsent):
		return unsent(ctx, op, what)
	}
	return problem(op, what, kindOf(err), driver.WithCause(ctx, err))
}

// harmless makes an unknown outcome Retryable, for a request that only reads, or comes before the
// caller's own: it changes nothing that the caller asked for.
func harmless(err error) error {
	var e *interlock.Error
	if interlock.Kind(err) != interlock.Uncertain || !errors.As(err, &e) {
		return err
	}
	return problem(e.Op, e.Name, interlock.Retryable, e.Err)
}

func leaseGone(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }

func errClosed(op, what string) error {
	return problem(op, what, interlock.Bug, interlock.ErrClosed)
}

// checkName rejects names that the layout does not allow.
func checkName(op, what string) error {
	if what != "" && len(what) <= driver.MaxName {
		return nil
	}
	return problem(op, "", interlock.Bug, fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(what), driver.MaxName))
}
