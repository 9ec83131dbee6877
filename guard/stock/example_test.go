package stock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/stock"
)

// Two buyers want the last seat. One pays; the other gets an error at once.
func ExampleStore() {
	ctx := context.Background()
	store := stock.NewStore(memory.NewStock(), nil) // or redis.NewStock(client, nil)
	if err := store.Set(ctx, "seat/12A", 1); err != nil {
		log.Fatal(err)
	}
	seat := stock.Line{Item: "seat/12A", N: 1}
	fmt.Println("alice:", store.Hold(ctx, "order/1", 10*time.Minute, seat))
	fmt.Println("bob:", store.Hold(ctx, "order/2", 10*time.Minute, seat))
	fmt.Println("alice pays:", store.Confirm(ctx, "seat/12A", "order/1"))
	fmt.Println("and again:", store.Confirm(ctx, "seat/12A", "order/1"))
	// Output:
	// alice: <nil>
	// bob: too few units of "seat/12A": 1 wanted, 0 available
	// alice pays: <nil>
	// and again: <nil>
}

// A balance that each operation changes once, and that is never below zero.
func ExampleStore_Adjust() {
	ctx := context.Background()
	store := stock.NewStore(memory.NewStock(), nil)
	_ = store.Set(ctx, "account/42", 100)
	pay := stock.Adjustment{Item: "account/42", Operation: "payment/7", Delta: -70}
	fmt.Println(store.Adjust(ctx, pay))
	fmt.Println(store.Adjust(ctx, pay)) // the answer to the first had been lost
	pay.Operation = "payment/8"
	var short *stock.ShortError
	fmt.Println(errors.As(store.Adjust(ctx, pay), &short), short.Available)
	level, err := store.Show(ctx, "account/42")
	fmt.Println(level.Available(), err)
	// Output:
	// <nil>
	// <nil>
	// true 30
	// 30 <nil>
}

// Book a seat in the transaction that writes the user's own booking. The unique index on
// booking.seat is a safety net: it also rejects a second booking by code that bypasses this
// package.
//
//	create table booking (order_id text primary key, seat text not null);
//	create unique index one_booking_of_a_seat on booking (seat);
func ExampleTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	stocks := stock.Table{} // Create has created its tables
	seat := stock.Line{Item: "seat/12A", N: 1}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return stocks.Hold(ctx, postgres.Tx(tx), "order/17", 10*time.Minute, seat)
	})
	if _, found := errors.AsType[*stock.ShortError](err); found {
		fmt.Println("the seat is taken")
		return
	}
	// The buyer pays. A repeated transaction takes effect once.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into booking (order_id, seat) values ('order/17', 'seat/12A') on conflict (order_id) do nothing`)
		if err != nil {
			return err
		}
		return stocks.Confirm(ctx, postgres.Tx(tx), "order/17")
	})
	if _, found := errors.AsType[*stock.SettledError](err); found {
		fmt.Println("too late, the money goes back: the hold had expired, and others have the seat")
	}
}
