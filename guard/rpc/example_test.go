package rpc_test

import (
	"context"
	"errors"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/guard/rpc"
	"github.com/interlock-dev/interlock/guard/wire"
)

// A call under a lock.
func ExampleUnaryClient() {
	var locks *lock.Fenced
	conn, err := grpc.NewClient("bank:443", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(rpc.UnaryClient(nil)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = locks.Do(context.Background(), "account/42", func(ctx context.Context, c interlock.Claim) error {
		return conn.Invoke(wire.Under(ctx, c, ""), "/Bank/Withdraw", wrapperspb.String("42"), new(wrapperspb.StringValue))
	})
	if errors.Is(err, interlock.ErrStaleToken) {
		log.Print("a newer holder has entered; nothing was done")
	}
}

// A service whose methods find the passage by wire.From, and enter a guard with it.
func ExampleUnaryServer() {
	account := func(_ context.Context, _ string, request any) (string, error) {
		r, ok := request.(interface{ GetAccount() string })
		if !ok {
			return "", errors.New("the request names no account")
		}
		return "account/" + r.GetAccount(), nil
	}
	_ = grpc.NewServer(
		grpc.UnaryInterceptor(rpc.UnaryServer(account, nil)),
		grpc.StreamInterceptor(rpc.StreamServer(account, nil)))
}
