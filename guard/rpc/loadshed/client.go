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
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/overload"
)

// UnaryClient makes calls under the rules of overload.Call. Unavailable and ResourceExhausted are
// rejections if the server says when or whether to retry. Other Unavailable is a failure, as are
// Internal, Unknown, DataLoss and DeadlineExceeded; all other statuses are answers. Rejections and
// Unavailable are retried if idempotent is true of the method; a nil idempotent is true of none.
//
// If Options.Hedge is set, calls to idempotent methods are hedged. Then each attempt has its own
// reply, and grpc.Header, grpc.Trailer and grpc.Peer return those of the attempt that counts. A
// call whose reply is not a [proto.Message] has one attempt in that case.
//
// An error is the status of the last attempt. If that was rejected, the error is also an
// overload.RejectedError with NoRetry.
func UnaryClient(p *overload.Policy, idempotent func(method string) bool) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if class := overload.ClassOf(ctx); class != overload.Critical {
			ctx = metadata.AppendToOutgoingContext(ctx, Key, class.String())
		}
		again := idempotent != nil && idempotent(method)
		message, isMessage := reply.(proto.Message)
		apart := again && isMessage && p.Hedges()
		send := func(ctx context.Context) (*attempt, error) {
			a := &attempt{reply: reply, opts: opts}
			if apart {
				a.separate(message)
			}
			a.err = invoke(ctx, method, req, a.reply, cc, append(a.opts[:len(a.opts):len(a.opts)], grpc.Trailer(&a.end))...)
			return a, a.judge(ctx, again)
		}
		call := overload.Once[*attempt]
		if again && (isMessage || !p.Hedges()) {
			call = overload.Call[*attempt]
		}
		a, err := call(ctx, p, send)
		if a != nil && apart {
			a.deliver(message, opts)
		}
		var rejected *overload.RejectedError
		switch {
		case errors.As(err, &rejected):
			return &rejection{rejected, a}
		case a != nil:
			return a.err
		}
		return err
	}
}

// An attempt has the results of one invoke.
type attempt struct {
	reply any
	opts  []grpc.CallOption
	end   metadata.MD // the trailer
	err   error

	header, trailer metadata.MD // for the caller, if separate
	peer            peer.Peer
}

// separate gives the attempt its own reply, header and trailer.
func (a *attempt) separate(reply proto.Message) {
	a.reply = reply.ProtoReflect().New().Interface()
	opts := make([]grpc.CallOption, len(a.opts))
	for i, o := range a.opts {
		switch o.(type) {
		case grpc.HeaderCallOption:
			o = grpc.Header(&a.header)
		case grpc.TrailerCallOption:
			o = grpc.Trailer(&a.trailer)
		case grpc.PeerCallOption:
			o = grpc.Peer(&a.peer)
		}
		opts[i] = o
	}
	a.opts = opts
}

// deliver copies the attempt's results to the caller.
func (a *attempt) deliver(reply proto.Message, opts []grpc.CallOption) {
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = a.header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = a.trailer
		case grpc.PeerCallOption:
			*o.PeerAddr = a.peer
		}
	}
	if got, ok := a.reply.(proto.Message); ok && a.err == nil {
		proto.Reset(reply)
		proto.Merge(reply, got)
	}
}

// judge returns the status as an error for the policy; nil means that the service works.
func (a *attempt) judge(ctx context.Context, again bool) error {
	s := status.Convert(a.err)
	switch s.Code() {
	case codes.Unavailable, codes.ResourceExhausted:
		after, may, said := retryOf(s, a.end)
		switch {
		case said:
			return &overload.RejectedError{Reason: s.Message(), RetryAfter: after, NoRetry: !may || !again}
		case s.Code() == codes.ResourceExhausted: // such as a message that is too large
			return nil
		case again && ctx.Err() == nil:
			return &interlock.Error{Op: "call", Kind: interlock.Retryable, Err: a.err}
		}
		return a.err
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.DeadlineExceeded:
		return a.err
	}
	return nil
}

// retryOf returns the server's retry delay, and whether a retry is allowed.
func retryOf(s *status.Status, trailer metadata.MD) (after time.Duration, may, said bool) {
	if pushback := trailer.Get(pushbackKey); len(pushback) > 0 {
		ms, err := strconv.ParseInt(pushback[0], 10, 32)
		return time.Duration(ms) * time.Millisecond, err == nil && ms >= 0, true
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return max(0, info.GetRetryDelay().AsDuration()), true, true
		}
	}
	return 0, false, false
}

// rejection is a RejectedError and a status: that of the server, or Unavailable if this process
// rejected the call.
type rejection struct {
	*overload.RejectedError
	last *attempt
}

func (r *rejection) Unwrap() error { return r.RejectedError }

// GRPCStatus implements the interface of package status.
func (r *rejection) GRPCStatus() *status.Status {
	if r.last != nil {
		return status.Convert(r.last.err)
	}
	return status.New(codes.Unavailable, r.Error())
}
