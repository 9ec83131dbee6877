package value_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/value"
)

// acquire acquires the lock like another process.
func acquire(space *memory.Space, name string) (c *lock.Claim, end func()) {
	ctx := context.Background()
	d := space.Open(nil)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	c, err = locks.Acquire(ctx, name)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { c.Release(ctx); locks.Close(ctx); d.Close(ctx) }
}

// The lock is taken away from A, which has not noticed yet and writes after B.
func ExampleStore() {
	ctx := context.Background()
	space := memory.NewSpace()
	values, err := value.New(space.Values(), nil)
	if err != nil {
		log.Fatal(err)
	}

	a, end := acquire(space, "limits")
	defer end()
	space.Revoke("limits")
	b, end := acquire(space, "limits")
	defer end()

	fmt.Println("B:", values.Put(ctx, b, []byte("100 per second")))
	err = values.Put(ctx, a, []byte("5 per second"))
	fmt.Println("A is stale:", errors.Is(err, interlock.ErrStaleToken))
	v, err := values.Get(ctx, "limits")
	fmt.Printf("%s, written under B's token: %v, %v\n", v.Data, v.Token == b.Token(), err)
	// Output:
	// B: <nil>
	// A is stale: true
	// 100 per second, written under B's token: true, <nil>
}

// A reader follows a configuration until it has the expected value.
func ExampleJSON() {
	type limits struct{ PerSecond int }
	ctx := context.Background()
	space := memory.NewSpace()
	store, err := value.New(space.Values(), nil)
	if err != nil {
		log.Fatal(err)
	}
	values := value.JSON[limits]{Store: store}
	c, end := acquire(space, "limits")
	defer end()

	for v, err := range values.Watch(ctx, "limits") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%+v\n", v.Data)
		if v.Data.PerSecond == 200 {
			break
		}
		if err := values.Put(ctx, c, limits{PerSecond: v.Data.PerSecond + 100}); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// {PerSecond:0}
	// {PerSecond:100}
	// {PerSecond:200}
}
