package rpc

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/wire"
)

// IdempotencyKey is the metadata with the key of a request that is to take effect
// once: the HTTP header in lower case, parsed by [idempotency.ParseKey].
const IdempotencyKey = "idempotency-key"

// IdempotencyReplayed is the header, "true", of a replayed answer.
const IdempotencyReplayed = "idempotency-replayed"

// IdempotencyOptions configure [Idempotent]; nil and the zero value are valid.
type IdempotencyOptions struct {
	// Optional accepts calls without a key, which then may take effect twice;
	// otherwise they are InvalidArgument.
	Optional bool
	// Wait bounds how long a call waits for the answer of another one in flight with
	// its key; 0 answers Aborted at once.
	Wait time.Duration
	// KeepRequest stores the request, as protobuf bytes, for an
	// [idempotency.Completer].
	KeepRequest bool
}

// Idempotent makes each unary call with a key take effect once, and answers its retries with
// the same reply, or the same status. scope returns the authenticated owner of the call. A
// client that shares a scope and knows a key can get the answer. The service has phases like an
// HTTP handler; if the last one is an [idempotency.LastPhase], [Reply] makes its answer.
// Headers and trailers of the service are not stored; a replay has the header
// [IdempotencyReplayed].
//
// Results that depend on the request alone are stored: a reply, InvalidArgument,
// NotFound, AlreadyExists, OutOfRange and Unimplemented. Unauthenticated,
// PermissionDenied, ResourceExhausted, FailedPrecondition and Aborted free the key, and so does each
// refusal of a fencing token. An error of a guard counts as its [Status].
// Any other error leaves the call unfinished.
//
// Its own refusals are a status:
//   - InvalidArgument: the key is missing, malformed, or used for another request
//   - Aborted: the call is in flight, or another attempt has overtaken it
//   - AlreadyExists: it was done, and its answer is too large to store
//   - Unavailable: the store is unreachable
//   - Unknown: the outcome is unknown
//
// The fingerprint covers the method and the request's bytes as encoded by this
// program: another version of protobuf may encode the same request differently.
func Idempotent(s *idempotency.Store, scope func(context.Context) string, o *IdempotencyOptions) grpc.UnaryServerInterceptor {
	o = cmp.Or(o, &IdempotencyOptions{})
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		key, err := idempotency.ParseKey(metadata.ValueFromIncomingContext(ctx, IdempotencyKey))
		switch {
		case err != nil:
			return nil, status.Errorf(codes.InvalidArgument, "the %s is malformed: %v", IdempotencyKey, err)
		case key == "" && o.Optional:
			return next(ctx, req)
		case key == "":
			return nil, status.Errorf(codes.InvalidArgument, "an %s is required", IdempotencyKey)
		}
		message, ok := req.(proto.Message)
		if !ok {
			return nil, status.Errorf(codes.Internal, "the request is a %T, and no message of protobuf", req)
		}
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "the request cannot be written: %v", err)
		}
		call := idempotency.Call{Scope: scope(ctx), Operation: info.FullMethod, Key: key, Wait: o.Wait,
			Fingerprint: idempotency.Fingerprint([]byte(info.FullMethod), text)}
		if o.KeepRequest {
			call.Input = text
		}
		return answer(ctx, s, call, func(ctx context.Context) (any, error) { return next(ctx, req) })
	}
}

// answer executes a call, or replays its answer.
func answer(ctx context.Context, s *idempotency.Store, call idempotency.Call, next func(context.Context) (any, error)) (any, error) {
	var shown error // the service's error, if that is not stored
	response, err := s.Do(ctx, call, func(ctx context.Context) (idempotency.Response, error) {
		reply, err := next(ctx)
		switch fateOf(err) {
		case kept:
			response, err := outcome(reply, err)
			shown = err
			return response, err
		case freed:
			idempotency.From(ctx).Decline()
			shown = err
			return idempotency.Response{}, nil
		}
		shown = err
		return idempotency.Response{}, err
	})
	if response.Replayed {
		_ = grpc.SetHeader(ctx, metadata.Pairs(IdempotencyReplayed, "true")) // fails only outside of a call
	}
	switch {
	case err == nil && response.Header == nil: // neither stored nor made by Reply
		return nil, shown
	case err == nil:
		return read(response)
	case shown != nil && errors.Is(err, shown):
		return nil, shown
	}
	return nil, refusal(err)
}

// fate is the treatment of a call whose service has returned.
type fate int

const (
	kept fate = iota
	freed
	unfinished
)

// fateOf decides by a service's error whether it depends on the request alone.
func fateOf(err error) fate {
	err = Status(err) // of a guard
	if _, refused := errors.AsType[*wire.Refusal](Refusal(err)); refused && status.Code(err) == codes.InvalidArgument {
		return freed // the token is not a part of the fingerprint
	}
	switch status.Code(err) {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.Unimplemented:
		return kept
	case codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted:
		return freed
	}
	return unfinished
}

// typeHeader is the header with the name of an answer's message.
const typeHeader = "Message-Type"

// Reply returns a reply as the answer of an [idempotency.LastPhase].
func Reply(m proto.Message) (idempotency.Response, error) {
	body, err := proto.Marshal(m)
	name := string(proto.MessageName(m))
	return idempotency.Response{Header: http.Header{typeHeader: {name}}, Body: body}, err
}

// outcome encodes a service's result for the store.
func outcome(reply any, err error) (idempotency.Response, error) {
	if err != nil {
		st := status.Convert(err)
		response, failed := Reply(st.Proto())
		response.Status = int(st.Code())
		return response, failed
	}
	m, ok := reply.(proto.Message)
	if !ok {
		return idempotency.Response{}, status.Errorf(codes.Internal, "the reply is a %T, and no message of protobuf", reply)
	}
	return Reply(m)
}

// read decodes a service's result from an answer.
func read(response idempotency.Response) (any, error) {
	if response.Status != int(codes.OK) {
		st := status.New(codes.Unknown, "").Proto()
		if err := proto.Unmarshal(response.Body, st); err != nil {
			return nil, status.Errorf(codes.Internal, "the answer that was kept cannot be read: %v", err)
		}
		return nil, status.ErrorProto(st)
	}
	name := protoreflect.FullName(response.Header.Get(typeHeader))
	kind, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the answer that was kept is a %q, which is not known here", name)
	}
	m := kind.New().Interface()
	if err := proto.Unmarshal(response.Body, m); err != nil {
		return nil, status.Errorf(codes.Internal, "the answer that was kept cannot be read: %v", err)
	}
	return m, nil
}

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
