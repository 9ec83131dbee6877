// Package ratelimit limits gRPC calls by package flow/limit, as its Handler and Transport do HTTP
// requests. It does not limit the messages of a stream, only its begin.
//
//	server := grpc.NewServer(grpc.UnaryInterceptor(ratelimit.UnaryServer(limits,
//		func(ctx context.Context, method string, request any) []limit.Charge {
//			return []limit.Charge{{Key: "user/" + userOf(ctx), Rate: limit.PerSecond(100), Cost: 1}}
//		})))
//
// A refused call fails with ResourceExhausted, a google.rpc.RetryInfo and the trailer
// grpc-retry-pushback-ms, which clients with a retry policy obey (gRPC proposal A6). Without a
// decision of the store a call fails with Unavailable.
package ratelimit

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/interlock-dev/interlock/flow/limit"
)

// Charges returns the charges of a call to a method, "/package.Service/Method"; without any it is
// not limited. request is nil when a stream begins.
type Charges func(ctx context.Context, method string, request any) []limit.Charge

// UnaryServer limits unary calls.
func UnaryServer(l *limit.Limits, charges Charges) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		pushback, err := admit(ctx, l, charges(ctx, info.FullMethod, req))
		if err != nil {
			_ = grpc.SetTrailer(ctx, pushback) // fails only outside of a call
			return nil, err
		}
		return next(ctx, req)
	}
}

// StreamServer limits the beginning of streams.
func StreamServer(l *limit.Limits, charges Charges) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		pushback, err := admit(s.Context(), l, charges(s.Context(), info.FullMethod, nil))
		if err != nil {
			s.SetTrailer(pushback)
			return err
		}
		return next(srv, s)
	}
}

// admit returns the status of a refused call, and its trailer.
func admit(ctx context.Context, l *limit.Limits, charges []limit.Charge) (metadata.MD, error) {
	if len(charges) == 0 {
		return nil, nil
	}
	d, err := l.Take(ctx, charges...)
	switch {
	case err != nil:
		return nil, status.Error(codes.Unavailable, "the rate limit could not be decided")
	case d.Allowed:
		return nil, nil
	}
	wait := (d.RetryAfter + time.Millisecond - 1).Truncate(time.Millisecond)
	refusal := status.New(codes.ResourceExhausted, "rate limit exceeded; retry in "+wait.String())
	if detailed, err := refusal.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
		refusal = detailed
	}
	return metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(wait.Milliseconds(), 10)), refusal.Err()
}

// Limit returns the limit of calls to a method; with an empty key they are not limited.
type Limit func(ctx context.Context, method string) (key string, r limit.Rate)

// UnaryClient sends a call as soon as its limit allows it, or fails when its context ends.
func UnaryClient(l *limit.Limits, of Limit) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := wait(ctx, l, of, method); err != nil {
			return err
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// StreamClient begins a stream as soon as its limit allows it, or fails when its context ends.
func StreamClient(l *limit.Limits, of Limit) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := wait(ctx, l, of, method); err != nil {
			return nil, err
		}
		return begin(ctx, desc, cc, method, opts...)
	}
}

// wait returns an error of the store as it is, and one of the context as its status.
func wait(ctx context.Context, l *limit.Limits, of Limit, method string) error {
	key, rate := of(ctx, method)
	if key == "" {
		return nil
	}
	err := l.Wait(ctx, key, rate)
	if err != nil && ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}
