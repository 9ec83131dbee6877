package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/guard/fence"
)

// In this process the executor keeps the order of an account; between processes the
// claim and the guard do.
func ExampleExecutor() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil) // or redis, or etcd
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	accounts := fence.NewStore(space.Fence())

	x, err := keyed.NewExecutor(&keyed.Options{PerKey: 100})
	if err != nil {
		log.Fatal(err)
	}
	for _, state := range []string{"open", "frozen", "closed"} {
		err := x.Go(ctx, "account/42", func(ctx context.Context) error {
			return locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
				return accounts.Enter(ctx, c, "account/42", driver.Write{Key: "state", Value: []byte(state)})
			})
		}, func(err error) { fmt.Println(state, err) })
		var full *keyed.FullError
		if errors.As(err, &full) {
			fmt.Println("nothing was done; try again")
		}
	}
	fmt.Println("closed", x.Close(ctx))
	// Output:
	// open <nil>
	// frozen <nil>
	// closed <nil>
	// closed <nil>
}

// What queues up while a batch is under way shares the next one.
func ExampleBatches() {
	ctx := context.Background()
	space := memory.NewSpace()
	guarded := space.Fence()
	token := interlock.Token(1 << 12)
	b, err := keyed.NewBatches(100, func(ctx context.Context, key string, events []string) error {
		var writes []driver.Write // one request for all
		for _, e := range events {
			writes = append(writes, driver.Write{Key: key, Value: []byte(e)})
		}
		return guarded.Enter(ctx, driver.Raise{Resource: key, Token: token, Source: "worker 1"}, writes...)
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, event := range []string{"created", "paid", "shipped"} {
		if err := b.Go(ctx, "order/7", event, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := b.Close(ctx); err != nil {
		log.Fatal(err)
	}
	state, _ := guarded.Get("order/7")
	fmt.Printf("%s\n", state)
	// Output: shipped
}

// Locks for any number of keys, in memory that does not grow with them.
func ExampleStripes() {
	ctx := context.Background()
	s, err := keyed.NewStripes(0)
	if err != nil {
		log.Fatal(err)
	}
	err = s.DoAll(ctx, []string{"account/1", "account/2"}, func(ctx context.Context) error {
		// Between processes a claim and a guard do the same: see Executor.
		fmt.Println("nobody else of this process is here")
		return s.Do(ctx, "account/3", func(context.Context) error { return nil })
	})
	fmt.Println(errors.Is(err, interlock.ErrReentered))
	// Output:
	// nobody else of this process is here
	// true
}
