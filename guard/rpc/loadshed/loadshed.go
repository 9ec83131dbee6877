// Package loadshed keeps gRPC services and their callers within capacity by package flow/overload,
// as its Handler and Transport do for HTTP. It does not cover streams: the duration of a stream
// does not depend on the load, so an adaptive limit would learn from noise.
//
//	server := grpc.NewServer(grpc.UnaryInterceptor(loadshed.UnaryServer(policy, nil)))
//
//	conn, err := grpc.NewClient(target, grpc.WithUnaryInterceptor(loadshed.UnaryClient(backend,
//		func(method string) bool { return method != "/bank.Accounts/Transfer" })))
//
// # Statuses
//
// A rejected call fails with Unavailable. If it may be retried, the status has a
// google.rpc.RetryInfo, and the trailer grpc-retry-pushback-ms has the delay. Otherwise the
// trailer is -1, which forbids clients with a retry policy to retry (gRPC proposal A6). Do not
// give a channel with [UnaryClient] a retry policy as well.
package loadshed

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/interlock-dev/interlock/flow/overload"
)

const (
	// Key is the metadata that carries the class of a call, as overload.HeaderClass does over HTTP.
	Key = "interlock-criticality"

	pushbackKey = "grpc-retry-pushback-ms"
)

// Class returns the class of a call to a method, "/package.Service/Method".
type Class func(ctx context.Context, method string, request any) overload.Class

// MetadataClass returns the class of [Key], or Critical. It is a [Class] for callers that may
// choose their class.
func MetadataClass(ctx context.Context, _ string, _ any) overload.Class {
	for _, text := range metadata.ValueFromIncomingContext(ctx, Key) {
		for c := overload.Sheddable; c <= overload.CriticalPlus; c++ {
			if text == c.String() {
				return c
			}
		}
	}
	return overload.Critical
}

// UnaryServer admits calls by overload.Policy.Admit, with the class that of returns; nil means that
// all are Critical. If the handler returns an overload.RejectedError, as calls of [UnaryClient]
// to other services do, the status shows whether to retry. So only one layer retries.
func UnaryServer(p *overload.Policy, of Class) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if of != nil {
			ctx = overload.WithClass(ctx, of(ctx, info.FullMethod, req))
		}
		done, err := p.Admit(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			return nil, reject(ctx, err)
		}
		defer done()
		reply, err := next(ctx, req)
		return reply, reject(ctx, err)
	}
}

// reject returns the status of a rejection, and sends its trailer; other errors stay as they are.
func reject(ctx context.Context, err error) error {
	var rejected *overload.RejectedError
	if !errors.As(err, &rejected) {
		return err
	}
	s := status.New(codes.Unavailable, rejected.Error())
	pushback := int64(-1)
	if !rejected.NoRetry {
		wait := max(rejected.RetryAfter, 0)
		pushback = int64((wait + time.Millisecond - 1) / time.Millisecond)
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
			s = detailed
		}
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(pushbackKey, strconv.FormatInt(pushback, 10))) // fails only outside of a call
	return s.Err()
}
