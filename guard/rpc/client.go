package rpc

import (
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
	if o == nil {
		o = &ClientOptions{}
	}
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
	var r *wire.Refusal
	if errors.As(refusal, &r) {
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
