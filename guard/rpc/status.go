package rpc

import (
	"encoding/json"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/interlock-dev/interlock/guard/wire"
)

// codeOf maps each reason to its gRPC code.
var codeOf = map[wire.Reason]codes.Code{
	wire.Missing:       codes.InvalidArgument,
	wire.Malformed:     codes.InvalidArgument,
	wire.Implausible:   codes.InvalidArgument,
	wire.Forged:        codes.Unauthenticated,
	wire.Untimely:      codes.Unauthenticated,
	wire.WrongResource: codes.PermissionDenied,
	wire.Stale:         codes.FailedPrecondition,
	wire.Over:          codes.FailedPrecondition,
	wire.InDoubt:       codes.FailedPrecondition,
	wire.Done:          codes.AlreadyExists,
	wire.Busy:          codes.Aborted,
	wire.Unknown:       codes.Unknown,
}

// Status converts a guard's error to a status; see the package's comment. It
// returns any other error, and nil, unchanged. The interceptors of a server call
// it with the errors of its methods.
func Status(err error) error {
	r, ok := wire.RefusalOf(err)
	if !ok {
		return err
	}
	code, ok := codeOf[r.Reason]
	if !ok {
		code = codes.Unknown
	}
	st := status.New(code, r.Error())
	if detailed, err := st.WithDetails(protoadapt.MessageV1Of(detail(r))); err == nil {
		st = detailed
	}
	return st.Err()
}

// detail returns the problem as a well-known message.
func detail(r *wire.Refusal) *structpb.Struct {
	var s structpb.Struct
	if text, err := json.Marshal(r); err == nil {
		_ = s.UnmarshalJSON(text) // an object of texts and a number
	}
	return &s
}

// Refusal converts a status of [Status] to an error that is a [*wire.Refusal], and
// still the status. It returns any other error, and nil, unchanged. The
// interceptors of a client call it with every error.
func Refusal(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, d := range st.Details() {
		s, ok := d.(*structpb.Struct)
		if !ok {
			continue
		}
		var r wire.Refusal
		if text, err := s.MarshalJSON(); err == nil && r.UnmarshalJSON(text) == nil && codeOf[r.Reason] == st.Code() {
			return &refused{&r, st}
		}
	}
	return err
}

// refused is a refusal that was received as a status.
type refused struct {
	refusal *wire.Refusal
	status  *status.Status
}

func (r *refused) Error() string              { return r.refusal.Error() }
func (r *refused) Unwrap() error              { return r.refusal }
func (r *refused) GRPCStatus() *status.Status { return r.status }
