package rpc

import (
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

	"github.com/interlock-dev/interlock/guard/idempotency"
)

// IdempotencyKey is the metadata that carries the key of a request that is to take
// effect once: that of HTTP in lower case. It is read as [idempotency.ParseKey] does.
const IdempotencyKey = "idempotency-key"

// IdempotencyReplayed is the header, "true", of an answer that was given before.
const IdempotencyReplayed = "idempotency-replayed"

// IdempotencyOptions are those of [Idempotent]; nil and the zero value work.
type IdempotencyOptions struct {
	// Optional lets calls without a key pass, which then may take effect twice;
	// otherwise they are InvalidArgument.
	Optional bool
	// Wait is for how long a call waits for the answer of another one with its key
	// that is in flight; 0 answers Aborted at once.
	Wait time.Duration
	// KeepRequest keeps the request, as bytes of protobuf, for an
	// [idempotency.Completer].
	KeepRequest bool
}

// Idempotent lets each unary call that has a key take effect once, and answers its
// retries with the same reply, or the same status. scope tells whose call it is, by
// what the client has proved to be: a client that shares a scope and knows a key can have
// the answer. The service has phases as an HTTP handler has them; if the last one is
// an [idempotency.LastPhase], its answer is made by [Reply]. What it sets as header or
// trailer is not kept; a replay has the header [IdempotencyReplayed].
//
// What depends on the request alone is kept: a reply, InvalidArgument, NotFound,
// AlreadyExists, OutOfRange and Unimplemented. Unauthenticated, PermissionDenied,
// ResourceExhausted, FailedPrecondition and Aborted free the key. Any other error
// leaves the call unfinished.
//
// Its own refusals are a status: InvalidArgument if the key is missing or malformed,
// or stands for another request; Aborted if the call is in flight, or was overtaken by
// another attempt; AlreadyExists if it was done and its answer is too large to be
// kept; Unavailable if the store is out of reach, Unknown if the outcome is not known.
//
// The fingerprint is of the method and of the request's bytes as this program
// writes them: programs of other versions of protobuf may take the same request for
// another one.
func Idempotent(s *idempotency.Store, scope func(context.Context) string, o *IdempotencyOptions) grpc.UnaryServerInterceptor {
	if o == nil {
		o = &IdempotencyOptions{}
	}
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

// answer carries a call out, or replays its answer.
func answer(ctx context.Context, s *idempotency.Store, call idempotency.Call, next func(context.Context) (any, error)) (any, error) {
	var shown error // what the service failed with, if that is not kept
	response, err := s.Do(ctx, call, func(ctx context.Context) (idempotency.Response, error) {
		reply, err := next(ctx)
		switch fateOf(err) {
		case kept:
			return outcome(reply, err)
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
	case err == nil && response.Header == nil: // neither kept nor made by Reply
		return nil, shown
	case err == nil:
		return read(response)
	case shown != nil && errors.Is(err, shown):
		return nil, shown
	}
	return nil, refusal(err)
}

// fate is what to do with a call whose service has returned.
type fate int

const (
	kept fate = iota
	freed
	unfinished
)

// fateOf tells by a service's error whether it depends on the request alone.
func fateOf(err error) fate {
	switch status.Code(err) {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.Unimplemented:
		return kept
	case codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted:
		return freed
	}
	return unfinished
}

// typeHeader is where an answer has the name of its message.
const typeHeader = "Message-Type"

// Reply is a reply as the answer of an [idempotency.LastPhase].
func Reply(m proto.Message) (idempotency.Response, error) {
	body, err := proto.Marshal(m)
	name := string(proto.MessageName(m))
	return idempotency.Response{Header: http.Header{typeHeader: {name}}, Body: body}, err
}

// outcome is what a service returned, as it is kept.
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

// read makes of an answer what the service returned.
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
