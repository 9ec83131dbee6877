package partition_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
)

func Example() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil)
	defer d.Close(ctx)
	orders := fence.NewStore(space.Fence())

	g, err := partition.Join(ctx, d, space.Values(), "orders", partition.Layout{Partitions: 8}, &partition.Options{Identity: "shop-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Leave(ctx)
	ship := func(ctx context.Context, c interlock.Claim) error {
		return orders.Enter(ctx, c, "order/42", driver.Write{Key: "order/42", Value: []byte("shipped")})
	}
	err = g.Do(ctx, "order/42", ship)
	for interlock.Kind(err) == interlock.Retryable { // partitions come after the join, and can move
		time.Sleep(10 * time.Millisecond)
		err = g.Do(ctx, "order/42", ship)
	}
	at, awaited := g.Map().Await(ctx, "order/42", 0)
	fmt.Println(err, awaited, at.Identity)
	// Output: <nil> <nil> shop-1
}

func ExampleOpen() {
	ctx := context.Background()
	g, err := partition.Open(ctx, "memory://example", "orders", partition.Layout{Partitions: 8}, nil) // or redis://…, etcd://…
	if err != nil {
		panic(err)
	}
	defer g.Leave(ctx)
	if _, err := g.Map().Await(ctx, "order/42", 0); err != nil { // partitions come after the start
		panic(err)
	}
	err = g.Do(ctx, "order/42", func(context.Context, interlock.Claim) error {
		fmt.Println("owns the key")
		return nil
	})
	fmt.Println(err)
	// Output:
	// owns the key
	// <nil>
}
