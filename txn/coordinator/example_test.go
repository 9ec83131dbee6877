package coordinator_test

import (
	"context"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// The shards of a journal are spread over all processes that join a group: each drives
// those that it owns, and takes over those of one that has died.
func ExampleCoordinator_Serve() {
	ctx := context.Background()
	hello := saga.Define("hello", saga.Step("greet", func(_ context.Context, name string) (string, error) {
		return "hello, " + name, nil
	}).Uncompensable())

	j, err := journal.New(memory.NewJournal(), &journal.Options{Shards: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer j.Close()
	c, err := coordinator.New(j, nil)
	if err != nil {
		log.Fatal(err)
	}
	sagas, err := saga.New(c, nil, hello)
	if err != nil {
		log.Fatal(err)
	}

	space := memory.NewSpace() // in a real process: etcd, Postgres, Redis or ZooKeeper
	d := space.Open(nil)
	defer d.Close(ctx)
	group, err := partition.Join(ctx, d, space.Values(), "sagas", partition.Layout{Partitions: j.Shards()}, &partition.Options{
		Work: func(ctx context.Context, p partition.Partition) error { return c.Serve(ctx, p.Claim, p.Index) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer group.Leave(ctx)

	outcome, err := hello.Do(ctx, sagas, "hello/1", "world")
	fmt.Println(outcome.State, err)
	// Output: SUCCEEDED <nil>
}
