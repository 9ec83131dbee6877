package embedded

import (
	"context"

	"google.golang.org/grpc"
)

// endStreams makes open watches and keep-alives end when closing does. A node
// that stops waits for all of its streams, and these two have no end of their
// own: it would wait until its request timeout, five seconds.
func endStreams(closing <-chan struct{}) grpc.ServerOption {
	return grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		handled := make(chan struct{})
		defer close(handled)
		go func() {
			select {
			case <-closing:
				cancel()
			case <-handled:
			}
		}()
		return next(srv, endingStream{stream, ctx})
	})
}

// An endingStream is a stream with a context of ours.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context ends with the stream, or when the node is closed.
func (s endingStream) Context() context.Context { return s.ctx }
