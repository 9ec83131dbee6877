// Command saga books orders: it reserves, charges and ships, or undoes what it did. See
// docs/tutorials/saga.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	_ "github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/saga"
)

// Order is the input of the steps.
type Order struct {
	Item  string
	Price int
}

// The steps. A real one calls a service with saga.From(ctx).Key(), which is the same for
// every attempt, so that the service can ignore repetitions.
var (
	reserve = saga.Step("reserve", say("reserve")).Undo("release", undo("release"))
	charge  = saga.Step("charge", say("charge")).Undo("refund", undo("refund"))
	ship    = saga.Step("ship", func(ctx context.Context, o Order) (string, error) {
		if o.Item == "piano" {
			return "", saga.Fail(errors.New("too heavy for the post"))
		}
		return say("ship")(ctx, o)
	}).Pivot() // what is shipped cannot be undone; nothing is undone after it
	order = saga.Define("order", reserve, charge, ship)
)

func say(step string) func(ctx context.Context, o Order) (string, error) {
	return func(ctx context.Context, o Order) (string, error) {
		fmt.Println(step, o.Item, "under key", saga.From(ctx).Key())
		select {
		case <-time.After(*pause):
			return step + " done", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func undo(step string) func(ctx context.Context, o Order, output *string) error {
	return func(ctx context.Context, o Order, output *string) error {
		_, err := say(step)(ctx, o)
		return err
	}
}

var (
	backend = flag.String("backend", "etcd://127.0.0.1:7460?ttl=5s", "where the journal is")
	pause   = flag.Duration("pause", 0, "how long each step takes")
)

func main() {
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("usage: saga [flags] ID ITEM")
	}
	if err := book(context.Background(), flag.Arg(0), flag.Arg(1)); err != nil {
		log.Fatal(err)
	}
}

// book runs one order to its end. An order that was undone is an error.
func book(ctx context.Context, id, item string) error {
	runtime, err := txn.Open(ctx, *backend, nil)
	if err != nil {
		return err
	}
	defer runtime.Close(ctx)
	engine, err := saga.New(runtime.Coordinator(), nil, order)
	if err != nil {
		return err
	}
	if err := runtime.Start(ctx); err != nil {
		return err
	}
	outcome, err := order.Do(ctx, engine, id, Order{Item: item, Price: 100})
	if outcome.State != "" { // it began
		fmt.Println(outcome.State)
	}
	return err
}
