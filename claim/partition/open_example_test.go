package partition_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
)

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
