package shared_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/claim/shared"
)

func ExampleOpen() {
	ctx := context.Background()
	locks, err := shared.Open(ctx, "memory://example", nil) // or redis://…, etcd://…
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)
	err = locks.Read(ctx, "catalogue", func(context.Context, *shared.ReadClaim) error {
		fmt.Println("reads with others")
		return nil
	})
	fmt.Println(err)
	// Output:
	// reads with others
	// <nil>
}
