package semaphore_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/claim/semaphore"
)

func ExampleOpen() {
	ctx := context.Background()
	permits, err := semaphore.Open(ctx, "memory://example", 2, nil) // or redis://…, etcd://…
	if err != nil {
		panic(err)
	}
	defer permits.Close(ctx)
	err = permits.Do(ctx, "reports", func(ctx context.Context, p *semaphore.Permit) error {
		fmt.Println("one of two")
		return nil
	})
	fmt.Println(err)
	// Output:
	// one of two
	// <nil>
}
