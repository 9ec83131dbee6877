package crdt_test

import (
	"context"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/crdt"
)

// A set at two replicas: a removal does not affect additions that it has not seen.
func Example() {
	var eu, us crdt.ORSet
	added, _ := eu.Add("eu", "gold")
	message, _ := crdt.Encode(&added) // sent by an outbox or a queue

	var delta crdt.ORSet
	if err := crdt.Decode(message, &delta); err != nil {
		log.Fatal(err)
	}
	us.Merge(delta)
	us.Merge(delta) // a repeated message changes nothing

	removed := us.Remove("gold")
	again, _ := eu.Add("eu", "gold") // at the same time
	eu.Merge(removed)
	us.Merge(again)
	fmt.Println(eu.Elements(), us.Elements())
	// Output: [gold] [gold]
}

// Two regions sell ten units without asking each other. One dies, and its units are recovered.
func ExampleStore_Share() {
	ctx := context.Background()
	store := crdt.NewStore(memory.NewLattices()) // or redis.NewLattices(client, "shop/")
	claimed := func(n int64) interlock.Token { return interlock.Token(n << 12) }

	eu, err := store.Share(ctx, "stock/{tv}", "eu", claimed(1)) // the token of the claim of region eu
	if err != nil {
		log.Fatal(err)
	}
	_ = eu.Add(ctx, 10)
	_ = eu.Move(ctx, "us", 4)
	us, _ := store.Share(ctx, "stock/{tv}", "us", claimed(1))
	fmt.Println(us.Take(ctx, 3))
	fmt.Println(us.Take(ctx, 3))

	// us does not answer. Another process takes its claim, and opens its share.
	recovered, _ := store.Share(ctx, "stock/{tv}", "us", claimed(2))
	_ = recovered.Move(ctx, "eu", recovered.Left())
	_ = eu.Refresh(ctx)
	fmt.Println(eu.Left(), us.Take(ctx, 1))
	// Output:
	// <nil>
	// take units: replica "us" has a share of 1, needs 3
	// 7 memory: enter "bounded/stock/{tv}/us": stale token for "bounded/stock/{tv}/us": got 4096, but 8192 has entered
}
