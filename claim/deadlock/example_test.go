package deadlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
)

// Two transfers lock the same two accounts, in different orders. The younger one releases what
// it holds and begins again, with its context and so its age.
func Example() {
	ctx := context.Background()
	board := memory.NewKeyValues() // on etcd, Redis or PostgreSQL, if the locks are there
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(ctx)
	detector := deadlock.New(nil)
	defer detector.Close(ctx)

	acquire := deadlock.Wrap(deadlock.Resource{Board: board}, locks.Acquire)
	var both, all sync.WaitGroup
	both.Add(2)
	transfer := func(ctx context.Context, first bool, from, to string) error {
		payer, err := acquire(ctx, from)
		if err != nil {
			return err
		}
		defer payer.Release(ctx)
		if first { // wait until each holds one
			both.Done()
			both.Wait()
		}
		payee, err := acquire(ctx, to)
		if err != nil {
			return err
		}
		defer payee.Release(ctx)
		return nil // move the money, under a guard
	}
	run := func(ctx context.Context, from, to string) {
		err := transfer(ctx, true, from, to)
		if cycle, found := errors.AsType[*deadlock.Error](err); found {
			fmt.Println(cycle)
			err = transfer(ctx, false, from, to)
		}
		if err != nil {
			panic(err)
		}
	}
	older, younger := detector.Task(ctx, "transfer 1", 0), detector.Task(ctx, "transfer 2", -1) // by its priority
	all.Go(func() { run(older, "alice", "bob") })
	all.Go(func() { run(younger, "bob", "alice") })
	all.Wait()
	// Output: deadlock: transfer 2 awaits alice, held by transfer 1; transfer 1 awaits bob, held by transfer 2
}
