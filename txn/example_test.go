package txn_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/saga"
)

func Example() {
	ctx := context.Background()
	step := func(name string) saga.Action[string, string] {
		return saga.Step(name, func(_ context.Context, trip string) (string, error) { return name + " for " + trip, nil }).
			Undo("cancel "+name, func(context.Context, string, *string) error { return nil })
	}
	book := saga.Define("book", step("flight"), step("hotel"), step("car"))

	rt, err := txn.Open(ctx, "memory://example", nil) // or etcd://…, postgres://…, mysql://…
	if err != nil {
		panic(err)
	}
	defer rt.Close(ctx)
	engine, err := saga.New(rt.Coordinator(), nil, book)
	if err != nil {
		panic(err)
	}
	if err := rt.Start(ctx); err != nil {
		panic(err)
	}
	outcome, err := book.Do(ctx, engine, "trip/42", "Rome")
	fmt.Println(outcome.State, err)
	// Output: SUCCEEDED <nil>
}
