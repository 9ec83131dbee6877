package embedded

import (
	"context"

	"google.golang.org/grpc"
)

// endStreams ends open watches and keep-alives when closing is closed. A node that
// stops waits for all of its streams. These two have no end of their own, so the node
// would wait until its request timeout, five seconds.
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

// endingStream is a stream with its own context.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns a context that ends with the stream or when the node closes.
func (s endingStream) Context() context.Context { return s.ctx }
