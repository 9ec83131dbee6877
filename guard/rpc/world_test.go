package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/rpc"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

// token returns the n-th token of a system.
func token(n int) interlock.Token { return interlock.Token(int64(n) << 12) }

type claim = testbed.Claim

func grant(name string, t interlock.Token, ttl time.Duration) *claim {
	return testbed.NewClaim(name, "web-1", t, ttl)
}

// bank is a service whose messages are accounts: "withdraw" takes one, and "all"
// is a stream of them, each answered with an empty text.
type bank struct {
	withdraw func(ctx context.Context, account string) error
	served   atomic.Int64
}

func (b *bank) one(ctx context.Context, account string) error {
	b.served.Add(1)
	return b.withdraw(ctx, account)
}

var description = grpc.ServiceDesc{
	ServiceName: "Bank",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Withdraw", Handler: func(srv any, ctx context.Context, decode func(any) error, by grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		return by(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/Bank/Withdraw"}, func(ctx context.Context, req any) (any, error) {
			return &wrapperspb.StringValue{}, srv.(*bank).one(ctx, req.(*wrapperspb.StringValue).Value)
		})
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "All", ClientStreams: true, ServerStreams: true, Handler: func(srv any, s grpc.ServerStream) error {
		for {
			in := new(wrapperspb.StringValue)
			if err := s.RecvMsg(in); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := srv.(*bank).one(s.Context(), in.Value); err != nil {
				return err
			}
			if err := s.SendMsg(&wrapperspb.StringValue{}); err != nil {
				return err
			}
		}
	}}},
}

// about returns the resource of a request.
func about(_ context.Context, method string, request any) (string, error) {
	in, ok := request.(*wrapperspb.StringValue)
	if !ok || !strings.HasPrefix(method, "/Bank/") || in.Value == "" {
		return "", errors.New("which account?")
	}
	return "account/" + in.Value, nil
}

// client calls a bank on loopback.
type client struct{ conn *grpc.ClientConn }

// serve starts a bank, and returns a client of it.
func serve(t *testing.T, b *bank, options *wire.Options, by *rpc.ClientOptions) client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	s := grpc.NewServer(grpc.UnaryInterceptor(rpc.UnaryServer(about, options)), grpc.StreamInterceptor(rpc.StreamServer(about, options)))
	s.RegisterService(&description, b)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("dns:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(rpc.UnaryClient(by)), grpc.WithStreamInterceptor(rpc.StreamClient(by)))
	ok(t, err)
	t.Cleanup(func() { conn.Close() })
	return client{conn}
}

func (c client) withdraw(ctx context.Context, account string) error {
	return c.conn.Invoke(ctx, "/Bank/Withdraw", wrapperspb.String(account), new(wrapperspb.StringValue))
}

// all sends accounts by one stream, and waits for each answer.
func (c client) all(ctx context.Context, accounts ...string) error {
	s, err := c.conn.NewStream(ctx, &description.Streams[0], "/Bank/All")
	if err != nil {
		return err
	}
	for _, a := range accounts {
		if err := s.SendMsg(wrapperspb.String(a)); err != nil && err != io.EOF {
			return err
		}
		if err := s.RecvMsg(new(wrapperspb.StringValue)); err != nil {
			return err
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		return errors.Join(errors.New("it goes on"), err)
	}
	return nil
}

// each returns both ways to call.
func (c client) each() map[string]func(ctx context.Context, account string) error {
	return map[string]func(ctx context.Context, account string) error{"unary": c.withdraw,
		"stream": func(ctx context.Context, account string) error { return c.all(ctx, account) }}
}

var ok = testbed.OK
