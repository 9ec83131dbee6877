package lock_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
)

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
