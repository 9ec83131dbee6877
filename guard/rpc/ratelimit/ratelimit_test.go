package ratelimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	pb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/guard/rpc/ratelimit"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func limits(t *testing.T, store driver.Limiter) *limit.Limits {
	t.Helper()
	l, err := limit.New(store, &limit.Options{Hooks: &observe.Limit{Log: observe.Silent}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve returns a client of a health service with limited calls: two an hour of a method,
// except for "free".
func serve(t *testing.T, store driver.Limiter, o ...grpc.DialOption) pb.HealthClient {
	t.Helper()
	l := limits(t, store)
	charges := func(_ context.Context, method string, request any) []limit.Charge {
		if r, ok := request.(*pb.HealthCheckRequest); ok && r.Service == "free" {
			return nil
		}
		return []limit.Charge{{Key: method, Rate: limit.PerHour(2), Cost: 1}}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(ratelimit.UnaryServer(l, charges)), grpc.StreamInterceptor(ratelimit.StreamServer(l, charges)))
	service := health.NewServer()
	service.SetServingStatus("free", pb.HealthCheckResponse_SERVING)
	pb.RegisterHealthServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(o, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), func() error { server.Stop(); return <-served }()); err != nil {
			t.Error(err)
		}
	})
	return pb.NewHealthClient(conn)
}

// refused requires a status with a retry delay of about half an hour.
func refused(t *testing.T, err error, trailer metadata.MD) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted || len(s.Details()) != 1 || len(trailer.Get("grpc-retry-pushback-ms")) != 1 {
		t.Fatalf("%v, trailer %v", err, trailer)
	}
	pushback, err := time.ParseDuration(trailer.Get("grpc-retry-pushback-ms")[0] + "ms")
	info, ok := s.Details()[0].(*errdetails.RetryInfo)
	if !ok || err != nil || info.RetryDelay.AsDuration() != pushback || pushback < 29*time.Minute || pushback > 30*time.Minute {
		t.Errorf("retry in %v and %v: %v", info, pushback, err)
	}
}

func TestServer(t *testing.T) {
	client := serve(t, memory.NewLimiter())
	for range 2 {
		if _, err := client.Check(t.Context(), &pb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	var trailer metadata.MD
	_, err := client.Check(t.Context(), &pb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	refused(t, err, trailer)
	if _, err := client.Check(t.Context(), &pb.HealthCheckRequest{Service: "free"}); err != nil {
		t.Error(err)
	}
	watch := func() (grpc.ServerStreamingClient[pb.HealthCheckResponse], error) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		s, err := client.Watch(ctx, &pb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		return s, err
	}
	for range 2 {
		if _, err := watch(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := watch()
	refused(t, err, s.Trailer())
}

// down is an unavailable store.
type down struct{}

func (down) Take(_ context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	answers := make([]driver.LimitAnswer, len(calls))
	for i := range answers {
		answers[i].Err = io.ErrUnexpectedEOF
	}
	return answers
}

func TestServerWithoutDecision(t *testing.T) {
	if _, err := serve(t, down{}).Check(t.Context(), &pb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// TestClient: calls wait for their limit; the end of a context ends the wait.
func TestClient(t *testing.T) {
	l := limits(t, memory.NewLimiter())
	of := func(_ context.Context, method string) (string, limit.Rate) {
		if method == "/grpc.health.v1.Health/Watch" {
			return "", limit.Rate{}
		}
		return method, limit.Rate{Count: 1, Period: time.Hour}
	}
	client := serve(t, memory.NewLimiter(), grpc.WithUnaryInterceptor(ratelimit.UnaryClient(l, of)), grpc.WithStreamInterceptor(ratelimit.StreamClient(l, of)))
	if _, err := client.Check(t.Context(), &pb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := client.Check(ctx, &pb.HealthCheckRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if d, err := l.Peek(t.Context(), "/grpc.health.v1.Health/Check", limit.Rate{Count: 1, Period: time.Hour}); err != nil || d.Remaining != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	s, err := client.Watch(ctx, &pb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Error(err)
	}
}
