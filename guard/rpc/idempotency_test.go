package rpc_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/rpc"
	"github.com/interlock-dev/interlock/guard/wire"
)

// shop is a service that numbers its orders.
type shop struct {
	orders atomic.Int64
	err    error         // the error of each call
	busy   chan struct{} // if not nil, each call waits until it is closed
}

func (s *shop) order(ctx context.Context, what string) (*wrapperspb.Int64Value, error) {
	n := s.orders.Add(1)
	if s.busy != nil {
		<-s.busy
	}
	return wrapperspb.Int64(n), s.err
}

var shopping = grpc.ServiceDesc{ServiceName: "Shop", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Order", Handler: func(srv any, ctx context.Context, decode func(any) error, by grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		return by(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/Shop/Order"}, func(ctx context.Context, req any) (any, error) {
			return srv.(*shop).order(ctx, req.(*wrapperspb.StringValue).Value)
		})
	}}}}

// customer returns the owner of a call.
func customer(ctx context.Context) string {
	return strings.Join(metadata.ValueFromIncomingContext(ctx, "customer"), "")
}

// ordering serves a shop, and returns a function that orders an item under a key, with more
// metadata in pairs.
func ordering(t *testing.T, s *shop, records driver.Idempotency, o *rpc.IdempotencyOptions) func(what, key string, more ...string) (int64, error) {
	t.Helper()
	conn := dialShop(t, s, records, o)
	return func(what, key string, more ...string) (int64, error) {
		if key != "" {
			more = append(more, rpc.IdempotencyKey, key)
		}
		reply := new(wrapperspb.Int64Value)
		err := conn.Invoke(metadata.AppendToOutgoingContext(t.Context(), more...), "/Shop/Order", wrapperspb.String(what), reply)
		return reply.Value, err
	}
}

// dialShop serves a shop, and returns a connection to it.
func dialShop(t *testing.T, s *shop, records driver.Idempotency, o *rpc.IdempotencyOptions) *grpc.ClientConn {
	t.Helper()
	store, err := idempotency.New(records, nil)
	ok(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	server := grpc.NewServer(grpc.UnaryInterceptor(rpc.Idempotent(store, customer, o)))
	server.RegisterService(&shopping, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		ok(t, <-served)
	})
	conn, err := grpc.NewClient("dns:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	ok(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func wantStatus(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%v, want %v", err, want)
	}
}

func TestCallTakesEffectOnce(t *testing.T) {
	s := &shop{}
	order := ordering(t, s, memory.NewIdempotency(), nil)
	for _, key := range []string{"k", `"k"`} {
		if n, err := order("books", key); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if n, err := order("books", "k", "customer", "bob"); n != 2 || err != nil {
		t.Errorf("another customer: %d, %v", n, err)
	}
	_, err := order("pens", "k")
	wantStatus(t, err, codes.InvalidArgument)
	for _, key := range []string{"", `"k`} {
		_, err := order("books", key)
		wantStatus(t, err, codes.InvalidArgument)
	}
	_, err = order("books", "k", rpc.IdempotencyKey, "another")
	wantStatus(t, err, codes.InvalidArgument)
	if s.orders.Load() != 2 {
		t.Errorf("%d orders", s.orders.Load())
	}
	optional := ordering(t, s, memory.NewIdempotency(), &rpc.IdempotencyOptions{Optional: true})
	for i := range 2 {
		if n, err := optional("books", ""); n != int64(3+i) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
}

// TestReplayIsMarked: a client can recognize a replay, of a reply and of a status.
func TestReplayIsMarked(t *testing.T) {
	for _, failed := range []error{nil, status.Error(codes.NotFound, "no books")} {
		conn := dialShop(t, &shop{err: failed}, memory.NewIdempotency(), nil)
		for i, want := range []string{"", "true"} {
			var header metadata.MD
			ctx := metadata.AppendToOutgoingContext(t.Context(), rpc.IdempotencyKey, "k")
			err := conn.Invoke(ctx, "/Shop/Order", wrapperspb.String("books"), new(wrapperspb.Int64Value), grpc.Header(&header))
			if got := strings.Join(header.Get(rpc.IdempotencyReplayed), ","); status.Code(err) != status.Code(failed) || got != want {
				t.Errorf("%d: %v, replayed %q, want %q", i, err, got, want)
			}
		}
	}
}

// TestStatusIsReplayed if it depends on the request alone; other failures are retried, and some
// free the key.
func TestStatusIsReplayed(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		want := status.New(code, "it's "+code.String())
		want, err := want.WithDetails(wrapperspb.String("detail"))
		ok(t, err)
		s := &shop{err: want.Err()}
		order := ordering(t, s, memory.NewIdempotency(), nil)
		for range 2 {
			_, err := order("books", "k")
			if got := status.Convert(err); !proto.Equal(got.Proto(), want.Proto()) {
				t.Errorf("%v became %v", want, got)
			}
		}
		runs := s.orders.Load()
		_, err = order("pens", "k")
		fate := map[bool]string{true: "unfinished", false: "freed"}[status.Code(err) == codes.InvalidArgument && code != codes.InvalidArgument]
		if runs == 1 {
			fate = "kept"
		}
		wanted := "unfinished"
		switch code {
		case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.Unimplemented:
			wanted = "kept"
		case codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted:
			wanted = "freed"
		}
		if fate != wanted {
			t.Errorf("%v is %s, want %s", code, fate, wanted)
		}
	}
}

// TestRefusedTokenIsNoAnswer: the token is not a part of the request's fingerprint, so the call with another
// token is executed. A guard's error, before it is a status, frees the key too.
func TestRefusedTokenIsNoAnswer(t *testing.T) {
	store, err := idempotency.New(memory.NewIdempotency(), nil)
	ok(t, err)
	info := &grpc.UnaryServerInfo{FullMethod: "/Bank/Withdraw"}
	once, fenced := rpc.Idempotent(store, customer, nil), rpc.UnaryServer(about, nil)
	call := func(account string, guard error, more ...string) error {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(append(more, rpc.IdempotencyKey, "k")...))
		_, err := once(ctx, wrapperspb.String(account), info, func(ctx context.Context, req any) (any, error) {
			if guard != nil {
				return nil, guard
			}
			return fenced(ctx, req, info, func(context.Context, any) (any, error) { return wrapperspb.String(account), nil })
		})
		return err
	}
	wantStatus(t, call("42", nil), codes.InvalidArgument)
	wantStatus(t, call("42", nil, rpc.Key, "1"), codes.InvalidArgument)
	if err := call("42", &interlock.StaleTokenError{Resource: "account/42"}); !errors.Is(err, interlock.ErrStaleToken) {
		t.Errorf("a guard's error became %v", err)
	}
	ok(t, call("43", nil, rpc.Key, wire.Pass{Token: token(1), Resource: "account/43", Remaining: bound}.String()))
}

// TestCallsAtOnce: one call runs, waiting calls get its answer, and the others are Aborted.
func TestCallsAtOnce(t *testing.T) {
	s, records := &shop{busy: make(chan struct{})}, memory.NewIdempotency()
	order := ordering(t, s, records, nil)
	patient := ordering(t, s, records, &rpc.IdempotencyOptions{Wait: bound})
	var running sync.WaitGroup
	var served, aborted atomic.Int64
	for i := range 32 {
		running.Go(func() {
			call := order
			if i%2 == 0 {
				call = patient
			}
			switch n, err := call("books", "k"); {
			case err == nil && n == 1:
				served.Add(1)
			case status.Code(err) == codes.Aborted && i%2 == 1:
				if aborted.Add(1) == 15 { // at least all but one of the calls that do not wait
					close(s.busy)
				}
			default:
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	running.Wait()
	if s.orders.Load() != 1 || served.Load() < 16 || served.Load()+aborted.Load() != 32 {
		t.Errorf("%d orders, %d served, %d aborted", s.orders.Load(), served.Load(), aborted.Load())
	}
}

// TestCallThatCannotBeRecorded is not executed, or has no answer.
func TestCallThatCannotBeRecorded(t *testing.T) {
	for _, c := range []struct {
		claim, finish interlock.ErrorKind
		target        error
		want          codes.Code
		orders        int64
	}{
		{claim: interlock.Retryable, want: codes.Unavailable},
		{claim: interlock.Bug, want: codes.Internal},
		{finish: interlock.Uncertain, want: codes.Unknown, orders: 1},
		{finish: interlock.Definite, target: interlock.ErrLost, want: codes.Aborted, orders: 1},
	} {
		s := &shop{}
		records := broken{Idempotency: memory.NewIdempotency()}
		if c.orders == 0 {
			records.claim = &interlock.Error{Op: "claim", Kind: c.claim, Err: errors.New("down")}
		} else {
			records.finish = &interlock.Error{Op: "finish", Kind: c.finish, Err: errors.Join(errors.New("down"), c.target)}
		}
		_, err := ordering(t, s, records, nil)("books", "k")
		if wantStatus(t, err, c.want); s.orders.Load() != c.orders || strings.Contains(err.Error(), "down") {
			t.Errorf("%d orders, %v", s.orders.Load(), err)
		}
	}
}

// broken is an unreachable store.
type broken struct {
	driver.Idempotency
	claim, finish error
}

func (b broken) Claim(ctx context.Context, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	if b.claim != nil {
		return driver.IdempotencyRecord{}, b.claim
	}
	return b.Idempotency.Claim(ctx, c)
}

func (b broken) Update(ctx context.Context, u driver.IdempotencyUpdate) error {
	if b.finish != nil && u.Answer != nil {
		return b.finish
	}
	return b.Idempotency.Update(ctx, u)
}

// TestLargeReplyFailsClosed: it is returned once, and the call does not run again.
func TestLargeReplyFailsClosed(t *testing.T) {
	runs := 0
	store, err := idempotency.New(memory.NewIdempotency(), &idempotency.Options{MaxAnswer: 100})
	ok(t, err)
	by := rpc.Idempotent(store, customer, nil)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(rpc.IdempotencyKey, "k"))
	large := wrapperspb.String(strings.Repeat("x", 200))
	call := func() (any, error) {
		return by(ctx, wrapperspb.String("books"), &grpc.UnaryServerInfo{FullMethod: "/Shop/Order"}, func(context.Context, any) (any, error) {
			runs++
			return large, nil
		})
	}
	reply, err := call()
	ok(t, err)
	if !proto.Equal(reply.(proto.Message), large) {
		t.Error("the first reply is another one")
	}
	if _, err = call(); status.Code(err) != codes.AlreadyExists || runs != 1 {
		t.Errorf("%v, %d runs", err, runs)
	}
}

// TestReplyThatIsNoMessage: a call that was carried out is not reported as one to try again.
func TestReplyThatIsNoMessage(t *testing.T) {
	store, err := idempotency.New(memory.NewIdempotency(), nil)
	ok(t, err)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(rpc.IdempotencyKey, "k"))
	_, err = rpc.Idempotent(store, customer, nil)(ctx, wrapperspb.String("books"), &grpc.UnaryServerInfo{FullMethod: "/Shop/Order"},
		func(context.Context, any) (any, error) { return "books", nil })
	wantStatus(t, err, codes.Internal)
}
