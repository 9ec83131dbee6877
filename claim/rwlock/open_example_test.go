package rwlock_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/claim/rwlock"
)

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
