package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// WithCause adds the cause of ctx, the context of one request, to the error that a client
// returned for the request. A context error of the client itself is kept as text only. It may
// come from a timeout of the driver's own, which must never match the caller's
// context.DeadlineExceeded.
func WithCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if cause != nil && errors.Is(cause, err) {
			return cause
		}
		err = errors.New(err.Error())
	}
	if cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// NeverSent reports whether err means that no connection was made, so that the request was not
// sent. Such an error is Retryable.
func NeverSent(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}
