package lock_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
)

func ExampleFenced_Do() {
	ctx := context.Background()
	d := memory.NewSpace().Open(nil) // or redis.Open, etcd.Open
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)

	var mark interlock.Token // what a guard in the store keeps
	for range 2 {
		err = locks.Do(ctx, "accounts/42", func(ctx context.Context, c interlock.Claim) error {
			fmt.Println("may act:", c.Valid(), "- newer than before:", c.Token() > mark)
			mark = c.Token() // fence.Tx does this in the store, and refuses what is older
			return nil
		})
	}
	fmt.Println(err)
	// Output:
	// may act: true - newer than before: true
	// may act: true - newer than before: true
	// <nil>
}

func ExampleNewAdvisory() {
	ctx := context.Background()
	d := memory.NewSpace().OpenPlain(nil)
	defer d.Close(ctx)
	locks, err := lock.NewAdvisory(d, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)

	err = locks.Do(ctx, "warm the cache", func(context.Context, *lock.AdvisoryClaim) error {
		fmt.Println("saves work, protects nothing: it has no token")
		return nil
	})
	fmt.Println(err)
	// Output:
	// saves work, protects nothing: it has no token
	// <nil>
}

func ExampleFenced_Held() {
	ctx := context.Background()
	d := memory.NewSpace().Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)

	inner := func(ctx context.Context) {
		_, held := locks.Held(ctx, "accounts/42")
		_, err := locks.Acquire(ctx, "accounts/42")
		fmt.Println(held, err)
	}
	_ = locks.Do(ctx, "accounts/42", func(ctx context.Context, _ interlock.Claim) error {
		inner(ctx)
		return nil
	})
	// Output:
	// true memory: acquire "accounts/42": already held by the caller's own context
}
