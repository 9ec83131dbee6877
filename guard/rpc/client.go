package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-dev/interlock/guard/wire"
)

// Key is the metadata that carries a token: [wire.Header] in lower case.
const Key = "interlock-token"

// ClientOptions configure a client's interceptors; nil and the zero value are valid.
type ClientOptions struct {
	// Signer signs tokens, for Audience; nil sends them unsigned.
	Signer *wire.Signer
	// Audience is the service that accepts them; see [wire.NewVerifier].
	Audience string
}

// outgoing returns the outbound call, with its token in the context.
func (o *ClientOptions) outgoing(ctx context.Context) (out wire.Outbound, err error) {
	o = cmp.Or(o, &ClientOptions{})
	out, under, err := wire.Outgoing(ctx, o.Signer, o.Audience)
	if err != nil || !under {
		return out, err
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(Key, out.Value)
	out.Context = metadata.NewOutgoingContext(out.Context, md)
	return out, nil
}

// UnaryClient adds the claim's token to each call under a claim, see [wire.Under],
// and ends the call with the claim. If the claim has ended, nothing is sent: the
// error is Definite and wraps the cause. If the claim or ctx ends during the call,
// the error is Uncertain and wraps the cause and the status. A refusal of the
// service is a [*wire.Refusal]; see [Refusal].
func UnaryClient(o *ClientOptions) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		out, err := o.outgoing(ctx)
		if err != nil {
			return err
		}
		defer out.Stop()
		return blame(out, invoke(out.Context, method, req, reply, cc, opts...))
	}
}

// blame returns the error of a call for its caller.
func blame(out wire.Outbound, err error) error {
	refusal := Refusal(err)
	if _, found := errors.AsType[*wire.Refusal](refusal); found {
		return refusal
	}
	return out.Outcome(refusal)
}

// StreamClient is [UnaryClient] for streams: the token is sent when the stream
// begins, and the stream ends with the claim. The caller must read it to its end,
// or end its context, as gRPC requires of every stream.
func StreamClient(o *ClientOptions) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		out, err := o.outgoing(ctx)
		if err != nil {
			return nil, err
		}
		s, err := begin(out.Context, desc, cc, method, opts...)
		if err != nil {
			defer out.Stop()
			return nil, blame(out, err)
		}
		unhook := context.AfterFunc(ctx, out.Stop) // for a stream that is not read to its end
		return &clientStream{s, out, func() { unhook(); out.Stop() }, !desc.ServerStreams}, nil
	}
}

type clientStream struct {
	grpc.ClientStream
	out    wire.Outbound
	stop   func()
	single bool // one answer is the end of it
}

// RecvMsg receives a message, or the end of the stream.
func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && !s.single {
		return nil
	}
	defer s.stop()
	if err == io.EOF {
		return err
	}
	return blame(s.out, err)
}

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
