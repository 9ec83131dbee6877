package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-dev/interlock/guard/wire"
)

// A Resource returns the resource of a request to a method,
// "/package.Service/Method": the name for the guard. Its error is answered with
// InvalidArgument and its text.
type Resource func(ctx context.Context, method string, request any) (string, error)

// incoming returns the tokens of a call.
func incoming(ctx context.Context) []string { return metadata.ValueFromIncomingContext(ctx, Key) }

// UnaryServer accepts calls with a token for the request's resource, and refuses
// all others before the method is called. The method's context contains the
// [*wire.Passage], and ends with it. A guard's error becomes a status; see
// [Status]. nil options trust every caller.
func UnaryServer(resource Resource, o *wire.Options) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		p, end, err := o.Admit(ctx, incoming(ctx), func() (string, error) { return resource(ctx, info.FullMethod, req) })
		if err != nil {
			return nil, Status(err)
		}
		defer end()
		reply, err := next(wire.Enclose(p), req)
		return reply, Status(err)
	}
}

// StreamServer is [UnaryServer] for streams. It checks every message; see the
// package's comment.
func StreamServer(resource Resource, o *wire.Options) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		p, end, err := o.Admit(s.Context(), incoming(s.Context()), nil)
		if err != nil {
			return Status(err)
		}
		defer end()
		checked := &serverStream{ServerStream: s, ctx: wire.Enclose(p), passage: p, method: info.FullMethod, resource: resource}
		return Status(next(srv, checked))
	}
}

type serverStream struct {
	grpc.ServerStream
	ctx      context.Context
	passage  *wire.Passage
	method   string
	resource Resource
}

// Context contains the passage, and ends with it.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message that is about the token's resource.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.passage.About(func() (string, error) { return s.resource(s.ctx, s.method, m) })
}
