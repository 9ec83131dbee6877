package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/guard/once"
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

// The queue is in another system, and effects are in a database. An inbox there tells which
// messages of a batch are new, and has a message that is delivered again make no effect.
func ExampleBatch() {
	var db interlock.Beginner[pgx.Tx] // postgres.Pool(pool)
	inbox := once.Inbox{Consumer: "billing"}
	handler := queue.Batch(func(ctx context.Context, all []queue.Received) error {
		messages := make([]once.Message, len(all))
		for i, m := range all {
			messages[i] = once.Message{ID: m.ID, Payload: m.Payload}
		}
		outcomes, err := once.BatchTx(ctx, db, inbox, messages, func(ctx context.Context, tx pgx.Tx, fresh []once.Message) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"bill"}, []string{"order_id"},
				pgx.CopyFromSlice(len(fresh), func(i int) ([]any, error) { return []any{string(fresh[i].Payload)}, nil }))
			return err
		})
		if slices.Contains(outcomes, once.Mismatched) {
			return queue.Dead(errors.New("another payload was handled under the same id")) // once it is alone
		}
		return err
	})
	_, _ = queue.New(context.Background(), memory.NewQueue(), "orders", handler, nil)
}
