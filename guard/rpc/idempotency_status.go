package rpc

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/idempotency"
)

// refusal returns the status of a call without an answer. It hides internal errors.
func refusal(err error) error {
	var busy *idempotency.InFlightError
	var mismatch *idempotency.MismatchError
	var unkept *idempotency.NotKeptError
	switch {
	case errors.As(err, &busy):
		return status.Error(codes.Aborted, err.Error())
	case errors.As(err, &mismatch):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.As(err, &unkept):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, interlock.ErrLost):
		return status.Error(codes.Aborted, "another attempt has taken over, try again to have its answer")
	case interlock.Kind(err) == interlock.Bug:
		return status.Error(codes.Internal, "the call cannot be recorded")
	case interlock.Kind(err) == interlock.Uncertain:
		return status.Error(codes.Unknown, "the call may have been carried out, try again with the same key to find out")
	}
	return status.Error(codes.Unavailable, "the call cannot be recorded now, try again with the same key")
}
