package rpc_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/rpc"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// keys returns a signer, and a verifier that accepts it.
func keys(t *testing.T, audience string) (*wire.Signer, *wire.Verifier) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	s, err := wire.NewSigner("a", key, nil)
	ok(t, err)
	v, err := wire.NewVerifier(audience, map[string]ed25519.PublicKey{"a": key.Public().(ed25519.PublicKey)}, nil)
	ok(t, err)
	return s, v
}

// wantCode requires a refusal with a status code.
func wantCode(t *testing.T, what string, err error, reason wire.Reason, code codes.Code) *wire.Refusal {
	t.Helper()
	var r *wire.Refusal
	if !errors.As(err, &r) || r.Reason != reason || status.Code(err) != code {
		t.Errorf("%s: %v (%v), want %s, %v", what, err, status.Code(err), reason, code)
		return &wire.Refusal{}
	}
	return r
}

// TestAStaleTokenIsRefused on a real Redis; an implausible one blocks no later token. The caller
// gets the guard's error.
func TestAStaleTokenIsRefused(t *testing.T) {
	conn, err := redis.Dial(testbed.Redis(t).URL())
	ok(t, err)
	defer conn.Close()
	store := fence.NewStore(redis.NewFence(conn))
	b := &bank{withdraw: func(ctx context.Context, account string) error {
		p, found := wire.From(ctx)
		if !found {
			return errors.New("no passage")
		}
		return store.Enter(ctx, p, p.Name(), driver.Write{Key: account, Value: []byte(p.Token().String())})
	}}
	signer, verifier := keys(t, "bank")
	for name, c := range map[string]client{"plain": serve(t, b, nil, nil),
		"signed": serve(t, b, &wire.Options{Verifier: verifier}, &rpc.ClientOptions{Signer: signer, Audience: "bank"})} {
		for way, call := range c.each() {
			account := name + " " + way
			under := func(n interlock.Token) error {
				return call(wire.Under(t.Context(), grant("account/"+account, n, bound), ""), account)
			}
			ok(t, under(token(2)))
			if name == "plain" {
				r := wantCode(t, account, under(math.MaxInt64), wire.Implausible, codes.InvalidArgument)
				if !errors.Is(r, interlock.ErrImplausibleToken) {
					t.Error(r)
				}
			}
			ok(t, under(token(3)))
			err := under(token(2))
			wantCode(t, account, err, wire.Stale, codes.FailedPrecondition)
			var stale *interlock.StaleTokenError
			if !errors.As(err, &stale) || *stale != (interlock.StaleTokenError{Resource: "account/" + account, Seen: token(3), Got: token(2)}) ||
				interlock.Kind(err) != interlock.Definite {
				t.Errorf("%s: %v (%v)", account, err, interlock.Kind(err))
			}
		}
	}
}

// TestBadTokensAreTheCallersFault: none reaches the service.
func TestBadTokensAreTheCallersFault(t *testing.T) {
	b := &bank{withdraw: func(context.Context, string) error { return nil }}
	signer, verifier := keys(t, "bank")
	var told int
	hooks := &observe.Wire{Refused: func(observe.WireRefused) { told++ }}
	trusting, strict := serve(t, b, &wire.Options{Hooks: hooks}, nil), serve(t, b, &wire.Options{Verifier: verifier, Hooks: hooks}, nil)
	signed, err := signer.Sign(grant("account/42", token(1), bound), "", "shop")
	ok(t, err)
	fine := token(1).String() + ";resource=account/42"
	for name, c := range map[string]struct {
		client
		values  []string
		account string
		reason  wire.Reason
		code    codes.Code
	}{
		"nothing":             {trusting, nil, "42", wire.Missing, codes.InvalidArgument},
		"nonsense":            {trusting, []string{"x"}, "42", wire.Malformed, codes.InvalidArgument},
		"two":                 {trusting, []string{fine, fine}, "42", wire.Malformed, codes.InvalidArgument},
		"another account":     {trusting, []string{fine}, "43", wire.WrongResource, codes.PermissionDenied},
		"no account":          {trusting, []string{fine}, "", wire.Malformed, codes.InvalidArgument},
		"the largest":         {trusting, []string{"9223372036854775807;resource=account/42"}, "42", wire.Implausible, codes.InvalidArgument},
		"not signed":          {strict, []string{fine}, "42", wire.Forged, codes.Unauthenticated},
		"of another audience": {strict, []string{signed}, "42", wire.WrongResource, codes.PermissionDenied},
	} {
		for way, call := range c.each() {
			told = 0
			ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{rpc.Key: c.values})
			wantCode(t, name+", "+way, call(ctx, c.account), c.reason, c.code)
			if b.served.Load() != 0 || told == 0 {
				t.Errorf("%s, %s: served %d, told %d", name, way, b.served.Load(), told)
			}
		}
	}
}

// TestStreamsStayWithTheirResource: a later message about another ends it.
func TestStreamsStayWithTheirResource(t *testing.T) {
	b := &bank{withdraw: func(context.Context, string) error { return nil }}
	c := serve(t, b, nil, nil)
	ctx := wire.Under(t.Context(), grant("account/42", token(1), bound), "")
	ok(t, c.all(ctx, "42", "42", "42"))
	wantCode(t, "a stream", c.all(ctx, "42", "43"), wire.WrongResource, codes.PermissionDenied)
	if b.served.Load() != 4 {
		t.Errorf("served %d", b.served.Load())
	}
}

// TestNothingIsSentUnderAnEndedClaim, and running calls end with it.
func TestNothingIsSentUnderAnEndedClaim(t *testing.T) {
	in := make(chan bool, 1)
	b := &bank{withdraw: func(ctx context.Context, _ string) error {
		in <- true
		<-ctx.Done()
		return ctx.Err()
	}}
	c := serve(t, b, nil, nil)
	for way, call := range c.each() {
		lost := grant("account/42", token(1), bound)
		lost.End(interlock.ErrLost)
		for cause, ended := range map[error]*claim{interlock.ErrLost: lost, interlock.ErrExpired: grant("account/42", token(1), -1)} {
			if err := call(wire.Under(t.Context(), ended, ""), "42"); !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
				t.Errorf("%s: %v (%v)", way, err, interlock.Kind(err))
			}
		}
		held, own := grant("account/42", token(1), bound), grant("account/42", token(1), bound)
		ctx, cancel := context.WithCancelCause(wire.Under(t.Context(), grant("account/42", token(1), bound), ""))
		for _, c := range []struct {
			ctx   context.Context
			end   context.CancelCauseFunc
			cause error
		}{
			{wire.Under(t.Context(), held, ""), held.End, interlock.ErrLost},
			{wire.Under(own.Context(), own, ""), own.End, interlock.ErrLost}, // as in the body of Do
			{ctx, cancel, &interlock.StaleTokenError{Resource: "of a sibling"}},
		} {
			go func() { <-in; c.end(c.cause) }()
			err := call(c.ctx, "42")
			if !errors.Is(err, c.cause) || interlock.Kind(err) != interlock.Uncertain || status.Code(err) != codes.Canceled {
				t.Errorf("%s: %v (%v)", way, err, interlock.Kind(err))
			}
		}
	}
	if b.served.Load() != 6 {
		t.Errorf("served %d", b.served.Load())
	}
}

// TestThePassageEndsAtTheService when the claim ends, without a message.
func TestThePassageEndsAtTheService(t *testing.T) {
	b := &bank{withdraw: func(ctx context.Context, _ string) error {
		p, _ := wire.From(ctx)
		<-ctx.Done()
		if p.Valid() || context.Cause(ctx) != interlock.ErrExpired {
			return fmt.Errorf("it ended with %v, valid: %v", context.Cause(ctx), p.Valid())
		}
		return &interlock.Error{Op: "run transaction", Name: p.Name(), Kind: interlock.Definite, Err: context.Cause(ctx)}
	}}
	c := serve(t, b, nil, nil)
	for way, call := range c.each() {
		text := wire.Pass{Token: token(1), Resource: "account/42", Remaining: 50 * time.Millisecond}.String()
		r := wantCode(t, way, call(wire.Carry(t.Context(), text), "42"), wire.Over, codes.FailedPrecondition)
		if r.Resource != "account/42" {
			t.Errorf("%s: %+v", way, r)
		}
	}
}

// TestEveryReasonTravels: as its code, and back.
func TestEveryReasonTravels(t *testing.T) {
	for _, reason := range wire.Reasons() {
		want := wire.Refusal{Reason: reason, Resource: "account/42", Seen: token(1 << 50), Got: token(1), Detail: "d"}
		b := &bank{withdraw: func(context.Context, string) error { return fmt.Errorf("withdraw: %w", &want) }}
		c := serve(t, b, nil, nil)
		for way, call := range c.each() {
			err := call(wire.Under(t.Context(), grant("account/42", token(1), bound), ""), "42")
			if r, found := errors.AsType[*wire.Refusal](err); !found || *r != want || interlock.Kind(err) != interlock.Kind(&want) {
				t.Errorf("%s, %s: %+v", reason, way, r)
			}
			if code := status.Code(err); code == codes.OK || code == codes.Internal || (code == codes.Unknown) != (reason == wire.Unknown) {
				t.Errorf("%s, %s: %v", reason, way, code)
			}
		}
	}
}

// TestOtherErrorsAreLeftAlone, and internal details of a service are not sent.
func TestOtherErrorsAreLeftAlone(t *testing.T) {
	plain := status.Error(codes.NotFound, "no such account")
	inside := &interlock.Error{Op: "commit", Driver: "postgres", Kind: interlock.Uncertain, Err: errors.New("10.1.2.3 reset")}
	for given, want := range map[error]codes.Code{plain: codes.NotFound, errors.New("broke"): codes.Unknown, inside: codes.Unknown, nil: codes.OK} {
		c := serve(t, &bank{withdraw: func(context.Context, string) error { return given }}, nil, nil)
		for way, call := range c.each() {
			err := call(wire.Under(t.Context(), grant("account/42", token(1), bound), ""), "42")
			if _, found := errors.AsType[*wire.Refusal](err); status.Code(err) != want || found != (given == error(inside)) || err != nil && strings.Contains(err.Error(), "10.1.2.3") {
				t.Errorf("%v, %s: %v", given, way, err)
			}
		}
	}
	// A status with other details, or another code, is not ours.
	forged := rpc.Status(&wire.Refusal{Reason: wire.Stale, Seen: token(2), Got: token(1)})
	st, _ := status.FromError(forged)
	p := st.Proto()
	p.Code = int32(codes.OutOfRange)
	var r *wire.Refusal
	if err := rpc.Refusal(status.ErrorProto(p)); errors.As(err, &r) {
		t.Errorf("%v is taken for %+v", err, r)
	}
	if rpc.Refusal(nil) != nil || rpc.Status(nil) != nil {
		t.Error("nil is an error")
	}
}

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
