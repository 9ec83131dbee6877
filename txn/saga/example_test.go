package saga_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// Order is the input of the saga.
type Order struct{ Seat, Card string }

// A seat is held, then paid for. The card of the second order is refused, and its
// seat released; each effect passes a guard under the call's key.
func Example() {
	ctx := context.Background()
	effects, err := once.NewBestEffort(memory.NewOnce(), "hall", nil)
	if err != nil {
		log.Fatal(err)
	}
	effect := func(ctx context.Context, what string) error {
		_, err := effects.Once(ctx, once.Message{ID: saga.From(ctx).Key()}, func(context.Context) error {
			fmt.Println(what)
			return nil
		})
		return err
	}

	hold := saga.Step("hold", func(ctx context.Context, o Order) (string, error) {
		return "ticket for " + o.Seat, effect(ctx, "hold "+o.Seat)
	}).Undo("release", func(ctx context.Context, o Order, ticket *string) error {
		return effect(ctx, "release "+o.Seat) // ticket is nil if the outcome of hold is unknown
	})
	pay := saga.Step("pay", func(ctx context.Context, o Order) (string, error) {
		if o.Card == "stolen" {
			return "", saga.Fail(errors.New("the card was refused"))
		}
		ticket, err := hold.Output(ctx)
		if err != nil {
			return "", err
		}
		return ticket + ", paid", effect(ctx, "charge "+o.Card)
	}).Pivot()
	book := saga.Define("book", hold, pay)

	rt, err := txn.Open(ctx, "memory://bookings", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	engine, err := saga.New(rt.Coordinator(), nil, book)
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Start(ctx); err != nil {
		log.Fatal(err)
	}

	outcome, err := book.Do(ctx, engine, "booking/1", Order{Seat: "12A", Card: "visa"})
	receipt, _ := pay.OutputOf(outcome)
	fmt.Println(outcome.State, receipt, err)
	outcome, err = book.Do(ctx, engine, "booking/2", Order{Seat: "12B", Card: "stolen"})
	fmt.Println(outcome.State, errors.Is(err, saga.ErrCompensated), outcome.Reason)
	// Output:
	// hold 12A
	// charge visa
	// SUCCEEDED ticket for 12A, paid <nil>
	// hold 12B
	// release 12B
	// COMPENSATED true pay: the card was refused
}

// A tour is a function: it computes the inputs of its steps, and books the legs
// concurrently.
func ExampleDefineFunc() {
	ctx := context.Background()
	book := saga.Step("book", func(ctx context.Context, city string) (int, error) {
		return len(city) * 100, nil // a real one passes saga.From(ctx).Key() to its target
	}).Undo("cancel", func(ctx context.Context, city string, price *int) error {
		return nil
	})
	pay := saga.Step("pay", func(ctx context.Context, amount int) (string, error) {
		return fmt.Sprint("paid ", amount), nil
	}).Pivot()
	tour := saga.DefineFunc("tour", func(s *saga.Run, cities []string) error {
		var legs []*saga.Future[int]
		for i, city := range cities {
			legs = append(legs, book.At(i).Go(s, city))
		}
		if err := s.Join(); err != nil {
			return err
		}
		sum := 0
		for _, leg := range legs {
			price, err := leg.Output()
			if err != nil {
				return err
			}
			sum += price
		}
		_, err := pay.Do(s, sum)
		return err
	}, book, pay)

	j, err := journal.New(memory.NewJournal(), nil)
	if err != nil {
		log.Fatal(err)
	}
	engine, stop := served(j, tour)
	defer stop()
	outcome, err := tour.Do(ctx, engine, "tour/1", []string{"Rome", "Oslo"})
	receipt, _ := pay.OutputOf(outcome)
	fmt.Println(outcome.State, receipt, err)
	// Output:
	// SUCCEEDED paid 800 <nil>
}
