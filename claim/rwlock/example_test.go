package rwlock_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
)

func ExampleLock() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil) // or redis.Open, etcd.Open
	defer d.Close(ctx)
	store := fence.NewStore(space.Fence())
	locks, err := rwlock.New(d, &rwlock.Options{
		// Rejects writers whose claim has ended, while others read.
		Seal: func(ctx context.Context, name string, door interlock.Claim) error {
			return store.Enter(ctx, door, name)
		},
	})
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)

	err = locks.Write(ctx, "prices", func(ctx context.Context, c interlock.Claim) error {
		return store.Enter(ctx, c, "prices", driver.Write{Key: "tea", Value: []byte("3")})
	})
	fmt.Println("written:", err)

	err = locks.Read(ctx, "prices", func(ctx context.Context, r *rwlock.ReadClaim) error {
		_, err := locks.TryWrite(context.Background(), "prices") // another caller
		fmt.Println(err != nil)
		tea, _ := space.Fence().Get("tea")
		if !r.Valid() { // after the last read
			return interlock.ErrExpired
		}
		fmt.Println("tea costs", string(tea))
		return nil
	})
	fmt.Println("read:", err)
	// Output:
	// written: <nil>
	// true
	// tea costs 3
	// read: <nil>
}

func ExampleOpen() {
	ctx := context.Background()
	locks, err := rwlock.Open(ctx, "memory://example", nil) // or redis://…, etcd://…
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)
	err = locks.Read(ctx, "catalogue", func(context.Context, *rwlock.ReadClaim) error {
		fmt.Println("reads with others")
		return nil
	})
	fmt.Println(err)
	// Output:
	// reads with others
	// <nil>
}
