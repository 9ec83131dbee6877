package queue_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/queue"
)

func Example() {
	ctx := context.Background()
	orders := memory.NewQueue()
	handled := make(chan string)
	c, err := queue.New(ctx, orders, "orders", func(_ context.Context, m queue.Received) error {
		// Write under m.Claim and its token: see guard/fence.
		handled <- m.Key + " " + string(m.Payload)
		return nil
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, what := range []string{"placed", "paid", "shipped"} {
		if err := orders.Add("orders", queue.Message{Key: "order/42", Payload: []byte(what)}); err != nil {
			fmt.Println(err)
		}
		fmt.Println(<-handled)
	}
	fmt.Println(c.Close(ctx))
	// Output:
	// order/42 placed
	// order/42 paid
	// order/42 shipped
	// <nil>
}
