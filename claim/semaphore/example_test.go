package semaphore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
)

func ExampleSemaphore() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil) // or redis.Open, etcd.Open
	defer d.Close(ctx)
	store := fence.NewStore(space.Fence())
	permits, err := semaphore.New(d, 2, nil)
	if err != nil {
		panic(err)
	}
	defer permits.Close(ctx)

	err = permits.Do(ctx, "reports", func(ctx context.Context, p *semaphore.Permit) error {
		// A mark for each slot: the tokens of different slots have no order.
		return store.Enter(ctx, p.Claim(), p.Resource(),
			driver.Write{Key: p.Resource(), Value: []byte("at work")})
	})
	fmt.Println(err)

	first, _ := permits.Acquire(ctx, "reports")
	second, _ := permits.Acquire(ctx, "reports")
	_, err = permits.TryAcquire(ctx, "reports")
	fmt.Println("two slots:", first.Slot()+second.Slot() == 1, "- a third:", errors.Is(err, interlock.ErrHeld))
	_ = second.Release(ctx)
	_ = first.Release(ctx)
	// Output:
	// <nil>
	// two slots: true - a third: true
}

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
