package loadshed_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/interlock-dev/interlock/flow/overload"
	"github.com/interlock-dev/interlock/guard/rpc/loadshed"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

func policy(t *testing.T, o overload.Options) *overload.Policy {
	t.Helper()
	p, err := overload.New(&o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// service answers checks.
type service struct {
	pb.UnimplementedHealthServer
	check func(ctx context.Context, name string, n int64) (pb.HealthCheckResponse_ServingStatus, error) // n counts calls
	calls atomic.Int64
}

func (s *service) Check(ctx context.Context, r *pb.HealthCheckRequest) (*pb.HealthCheckResponse, error) {
	answer, err := s.check(ctx, r.Service, s.calls.Add(1))
	return &pb.HealthCheckResponse{Status: answer}, err
}

// serve returns a client of a service.
func serve(t *testing.T, s *service, server grpc.UnaryServerInterceptor, client grpc.UnaryClientInterceptor) pb.HealthClient {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var options []grpc.ServerOption
	if server != nil {
		options = append(options, grpc.UnaryInterceptor(server))
	}
	host := grpc.NewServer(options...)
	pb.RegisterHealthServer(host, s)
	served := make(chan error, 1)
	go func() { served <- host.Serve(listener) }()
	dial := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if client != nil {
		dial = append(dial, grpc.WithUnaryInterceptor(client))
	}
	conn, err := grpc.NewClient(listener.Addr().String(), dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), func() error { host.Stop(); return <-served }()); err != nil {
			t.Error(err)
		}
	})
	return pb.NewHealthClient(conn)
}

func all(string) bool { return true }

// A full server rejects a call with a retry delay, and does no work. Its callers do not retry
// if other services rejected its handler's calls.
func TestServer(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var class atomic.Value
	s := &service{check: func(ctx context.Context, name string, _ int64) (pb.HealthCheckResponse_ServingStatus, error) {
		class.Store(overload.ClassOf(ctx))
		switch name {
		case "slow":
			inside <- struct{}{}
			<-leave
		case "behind":
			return 0, &overload.RejectedError{Reason: "another service is busy", NoRetry: true}
		case "missing":
			return 0, status.Error(codes.NotFound, "no such service")
		}
		return pb.HealthCheckResponse_SERVING, nil
	}}
	server := policy(t, overload.Options{MaxRunning: 1, MaxWaiting: -1})
	client := serve(t, s, loadshed.UnaryServer(server, loadshed.MetadataClass), nil)
	slow := make(chan error, 1)
	go func() {
		_, err := client.Check(t.Context(), &pb.HealthCheckRequest{Service: "slow"})
		slow <- err
	}()
	<-inside
	var trailer metadata.MD
	_, err := client.Check(t.Context(), &pb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	details := status.Convert(err).Details()
	if status.Code(err) != codes.Unavailable || len(details) != 1 || len(trailer.Get("grpc-retry-pushback-ms")) != 1 || trailer.Get("grpc-retry-pushback-ms")[0] != "1000" {
		t.Fatalf("full: %v, trailer %v", err, trailer)
	}
	if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.RetryDelay.AsDuration() != time.Second {
		t.Errorf("retry info %v", details[0])
	}
	close(leave)
	if err := <-slow; err != nil || s.calls.Load() != 1 {
		t.Errorf("%v, %d calls", err, s.calls.Load())
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), loadshed.Key, "sheddable")
	if _, err := client.Check(ctx, &pb.HealthCheckRequest{}); err != nil || class.Load() != overload.Sheddable {
		t.Errorf("%v, class %v", err, class.Load())
	}
	_, err = client.Check(t.Context(), &pb.HealthCheckRequest{Service: "behind"}, grpc.Trailer(&trailer))
	if got := trailer.Get("grpc-retry-pushback-ms"); status.Code(err) != codes.Unavailable || len(got) != 1 || got[0] != "-1" {
		t.Errorf("behind another client: %v, trailer %v", err, trailer)
	}
	if _, err := client.Check(t.Context(), &pb.HealthCheckRequest{Service: "missing"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// TestClient: which calls a client repeats, and what it returns.
func TestClient(t *testing.T) {
	busy := func(pushback string) func(context.Context) error {
		return func(ctx context.Context) error {
			return errors.Join(grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", pushback)), nil)
		}
	}
	for name, c := range map[string]struct {
		code     codes.Code
		trailer  func(context.Context) error
		once     bool // the method is not idempotent
		want     int64
		rejected bool
	}{
		"busy":                          {code: codes.Unavailable, trailer: busy("1"), want: 3, rejected: true},
		"quota":                         {code: codes.ResourceExhausted, trailer: busy("1"), want: 3, rejected: true},
		"busy, no retry":                {code: codes.Unavailable, trailer: busy("-1"), want: 1, rejected: true},
		"busy, unclear":                 {code: codes.Unavailable, trailer: busy("soon"), want: 1, rejected: true},
		"busy, not idempotent":          {code: codes.Unavailable, trailer: busy("1"), once: true, want: 1, rejected: true},
		"unavailable":                   {code: codes.Unavailable, want: 3},
		"unavailable, not idempotent":   {code: codes.Unavailable, once: true, want: 1},
		"too large":                     {code: codes.ResourceExhausted, want: 1},
		"internal":                      {code: codes.Internal, want: 1},
		"an answer":                     {code: codes.FailedPrecondition, want: 1},
		"an answer that is no error":    {code: codes.OK, want: 1},
		"an answer, and not idempotent": {code: codes.OK, once: true, want: 1},
	} {
		s := &service{check: func(ctx context.Context, _ string, _ int64) (pb.HealthCheckResponse_ServingStatus, error) {
			if c.trailer != nil {
				if err := c.trailer(ctx); err != nil {
					return 0, err
				}
			}
			return pb.HealthCheckResponse_NOT_SERVING, status.Error(c.code, "the reason")
		}}
		client := serve(t, s, nil, loadshed.UnaryClient(policy(t, overload.Options{Backoff: time.Microsecond}), func(string) bool { return !c.once }))
		r, err := client.Check(t.Context(), &pb.HealthCheckRequest{})
		if rejected, found := errors.AsType[*overload.RejectedError](err); s.calls.Load() != c.want || status.Code(err) != c.code || found != c.rejected || rejected != nil && !rejected.NoRetry {
			t.Errorf("%s: %d calls, want %d; %v", name, s.calls.Load(), c.want, err)
		}
		if err == nil && r.Status != pb.HealthCheckResponse_NOT_SERVING || err != nil && status.Convert(err).Message() != "the reason" {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// TestClientRejects: a call that this process rejects has a status, and is not sent.
func TestClientRejects(t *testing.T) {
	s := &service{check: func(context.Context, string, int64) (pb.HealthCheckResponse_ServingStatus, error) {
		return 0, status.Error(codes.Internal, "broken")
	}}
	client := serve(t, s, nil, loadshed.UnaryClient(policy(t, overload.Options{}), nil))
	testbed.Eventually(t, "the circuit breaker opens", bound, func() bool {
		calls := s.calls.Load()
		_, err := client.Check(t.Context(), &pb.HealthCheckRequest{})
		if errors.As(err, new(*overload.RejectedError)) {
			return s.calls.Load() == calls && status.Code(err) == codes.Unavailable
		}
		if status.Code(err) != codes.Internal {
			t.Fatal(err)
		}
		return false
	})
}

// TestClientClass: the client sends the class of a context.
func TestClientClass(t *testing.T) {
	classes := make(chan overload.Class, 1)
	s := &service{check: func(ctx context.Context, _ string, _ int64) (pb.HealthCheckResponse_ServingStatus, error) {
		classes <- loadshed.MetadataClass(ctx, "", nil)
		return 0, nil
	}}
	client := serve(t, s, nil, loadshed.UnaryClient(policy(t, overload.Options{}), nil))
	for _, want := range []overload.Class{overload.SheddablePlus, overload.Critical} {
		if _, err := client.Check(overload.WithClass(t.Context(), want), &pb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := <-classes; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// TestHedge: the first answer of two attempts counts, with its reply, header, trailer and peer;
// the other attempt writes to nothing of the caller. A method that is not idempotent is not
// hedged.
func TestHedge(t *testing.T) {
	release := make(chan struct{})
	var cancelled atomic.Int64
	s := &service{}
	s.check = func(ctx context.Context, _ string, n int64) (pb.HealthCheckResponse_ServingStatus, error) {
		first := n == 1
		for _, set := range []func(context.Context, metadata.MD) error{grpc.SetHeader, grpc.SetTrailer} {
			if err := set(ctx, metadata.Pairs("attempt", map[bool]string{true: "first", false: "second"}[first])); err != nil {
				return 0, err
			}
		}
		if first {
			select {
			case <-ctx.Done():
				cancelled.Add(1)
			case <-release:
			}
			return pb.HealthCheckResponse_NOT_SERVING, nil
		}
		return pb.HealthCheckResponse_SERVING, nil
	}
	client := serve(t, s, nil, loadshed.UnaryClient(policy(t, overload.Options{Hedge: time.Millisecond}), all))
	var header, trailer metadata.MD
	var at peer.Peer
	r, err := client.Check(t.Context(), &pb.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&at))
	if err != nil || r.Status != pb.HealthCheckResponse_SERVING || s.calls.Load() != 2 {
		t.Fatalf("%v, %v, %d calls", r, err, s.calls.Load())
	}
	if len(header.Get("attempt")) != 1 || header.Get("attempt")[0] != "second" || len(trailer.Get("attempt")) != 1 || trailer.Get("attempt")[0] != "second" || at.Addr == nil {
		t.Errorf("header %v, trailer %v, peer %v", header, trailer, at.Addr)
	}
	testbed.Eventually(t, "the other attempt ends", bound, func() bool { return cancelled.Load() == 1 })
	s.calls.Store(0)
	once := serve(t, s, nil, loadshed.UnaryClient(policy(t, overload.Options{Hedge: time.Millisecond}), nil))
	time.AfterFunc(20*time.Millisecond, func() { close(release) })
	if r, err := once.Check(t.Context(), &pb.HealthCheckRequest{}); err != nil || r.Status != pb.HealthCheckResponse_NOT_SERVING || s.calls.Load() != 1 {
		t.Errorf("not idempotent: %v, %v, %d calls", r, err, s.calls.Load())
	}
}
