package lock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
)

func ExampleFenced_Do() {
	ctx := context.Background()
	locks, err := lock.Open(ctx, "memory://do", nil) // or redis://…, etcd://…
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
	locks, err := lock.Open(ctx, "memory://held", nil)
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

func ExampleFenced_DoAll() {
	ctx := context.Background()
	locks, err := lock.Open(ctx, "memory://doall", nil) // or redis://…, etcd://…
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)

	transfer := func(from, to string) error {
		return locks.DoAll(ctx, []string{from, to}, func(ctx context.Context, claims lock.Claims) error {
			for _, c := range claims { // each has a token of its own, for its own guard
				fmt.Println(c.Name(), c.Token().Valid())
			}
			return nil
		})
	}
	fmt.Println(transfer("accounts/42", "accounts/7"))
	fmt.Println(transfer("accounts/7", "accounts/42")) // waits for nobody who waits for it
	// Output:
	// accounts/42 true
	// accounts/7 true
	// <nil>
	// accounts/42 true
	// accounts/7 true
	// <nil>
}

// Waiting until no lock below a prefix is held, without polling.
func ExampleFenced_Await() {
	ctx := context.Background()
	d := memory.NewSpace().Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)
	view, err := lock.ViewOf(d)
	if err != nil {
		panic(err)
	}

	c, err := locks.Acquire(ctx, "jobs/1")
	if err != nil {
		panic(err)
	}
	go c.Release(ctx) // when it pleases

	err = locks.Await(ctx, view, "jobs/", func(ctx context.Context, _ []string) (done bool, expires time.Duration, err error) {
		held, _, err := view.Locks(ctx, "jobs/", 1)
		if len(held) == 0 || held[0].Holder == nil {
			return err == nil, 0, err
		}
		return false, held[0].Holder.Expires, err
	})
	fmt.Println("no job runs:", err)
	// Output:
	// no job runs: <nil>
}

// A worker that one of several processes runs, for as long as they run.
func ExampleFenced_Keep() {
	ctx, stop := context.WithCancel(context.Background())
	locks, err := lock.Open(ctx, "memory://keep", nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)

	err = locks.Keep(ctx, "reports", func(ctx context.Context, c interlock.Claim) error {
		fmt.Println("works, the others stand by")
		stop() // the program is to end
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(err)
	// Output:
	// works, the others stand by
	// context canceled
}

func ExampleOpen() {
	ctx := context.Background()
	locks, err := lock.Open(ctx, "memory://example?ttl=10s", nil) // or redis://…, etcd://…, postgres://…
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		fmt.Println("holds", c.Name())
		return nil
	})
	fmt.Println(err)
	// Output:
	// holds account/42
	// <nil>
}
