package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
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

// In tests the queue is in memory, and the program opens it as it opens the one in a database.
func ExampleOpen() {
	ctx := context.Background()
	shop, end := memory.OpenQueue("shop")
	defer end()
	handled := make(chan string)
	c, err := queue.Open(ctx, "memory://shop", "orders", queue.Table{}, func(_ context.Context, m queue.Received) error {
		handled <- m.Key
		return nil
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(shop.Add("orders", queue.Message{Key: "order/42"}), <-handled, c.Close(ctx))
	// Output: <nil> order/42 <nil>
}

// A schedule adds a job at each of its times. The time is the job's unique key, so a tick that runs
// again after a crash adds nothing while the job is unfinished.
func ExampleTable_schedule() {
	var db interlock.Beginner[pgx.Tx] // postgres.Pool(pool)
	var elections *elect.Election     // elect.Open(ctx, url, nil)
	var jobs queue.Table
	ctx := context.Background()
	times, err := schedule.New(elections, &schedule.Options{Times: schedule.Every(time.Hour), Missed: schedule.RunLate})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = times.Run(ctx, "rollup", func(ctx context.Context, tick schedule.Tick) error {
		return queue.Tx(ctx, db, nil, func(ctx context.Context, tx pgx.Tx) error {
			return jobs.Add(ctx, postgres.Tx(tx), "jobs", queue.Message{Key: "rollup", Unique: "rollup " + tick.At.Format(time.RFC3339)})
		})
	})
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
