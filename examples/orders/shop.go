package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/saga"
)

// Order is the input of the saga. Price is in cents, of all units together.
type Order struct {
	Customer, Item string
	Units, Price   int
	Card           string
}

// The shop's tables: the guard of its steps, letters to be sent, and letters in the
// customers' letter boxes.
var (
	shopCalls = barrier.Table{Name: "shop_barrier"}
	outgoing  = outbox.Table{Name: "shop_outbox"}
	arrived   = once.Inbox{Name: "shop_inbox", Consumer: "letter boxes"}
)

var errSoldOut = errors.New("there are not so many left")

// shop reserves, charges and ships.
type shop struct {
	database string // its URL
	pool     *pgxpool.Pool
	db       interlock.BeginnerAt[pgx.Tx]
	bank     string // its address
	caller   branchhttp.Caller
	told     io.Writer // reports of the steps

	orders saga.Definition[Order]
	engine *saga.Engine
}

func newShop(database string, pool *pgxpool.Pool, bank string, told io.Writer) *shop {
	s := &shop{database: database, pool: pool, db: postgres.Pool(pool), bank: bank, told: told}
	s.orders = saga.Define("order",
		saga.Step("reserve", s.reserve).Undo("give back", s.giveBack),
		saga.Step("charge", s.charge).Timeout(5*time.Second).Pivot(), // no step is undone after it
		saga.Step("ship", s.ship),
	)
	return s
}

// reserve takes the units from stock, if there are enough.
func (s *shop) reserve(ctx context.Context, o Order) (left int, err error) {
	left, err = barrier.Do(ctx, s.db, shopCalls, o, func(ctx context.Context, tx pgx.Tx) (left int, err error) {
		err = tx.QueryRow(ctx, `update shop_stock set units = units - $2
			where item = $1 and units >= $2 returning units`, o.Item, o.Units).Scan(&left)
		if errors.Is(err, pgx.ErrNoRows) {
			return 0, branch.Fail(errSoldOut)
		}
		return left, err
	})
	if err == nil {
		fmt.Fprintf(s.told, "%s: %d of %s reserved\n", o.Customer, o.Units, o.Item)
	}
	return left, err
}

// giveBack returns the units if they were taken. The barrier also blocks a reserve that
// arrives later.
func (s *shop) giveBack(ctx context.Context, o Order, _ *int) error {
	return barrier.Undo(ctx, s.db, shopCalls, func(ctx context.Context, tx pgx.Tx, _ *int) error {
		_, err := tx.Exec(ctx, `update shop_stock set units = units + $2 where item = $1`, o.Item, o.Units)
		return err
	})
}

// charge calls the bank. Its error reports a refusal, an unsent call, or an unknown outcome.
func (s *shop) charge(ctx context.Context, o Order) (r Receipt, err error) {
	input, err := json.Marshal(Charge{Card: o.Card, Cents: o.Price})
	if err != nil {
		return r, branch.Fail(err)
	}
	output, err := s.caller.Post(ctx, s.bank, branch.From(ctx), input)
	if err != nil {
		return r, err
	}
	fmt.Fprintf(s.told, "%s: %d charged\n", o.Customer, o.Price)
	return r, json.Unmarshal(output, &r)
}

// ship records the parcel and, in the same transaction, the letter about it.
func (s *shop) ship(ctx context.Context, o Order) (parcel int64, err error) {
	parcel, err = barrier.Do(ctx, s.db, shopCalls, o, func(ctx context.Context, tx pgx.Tx) (parcel int64, err error) {
		err = tx.QueryRow(ctx, `insert into shop_parcel (customer, item, units) values ($1, $2, $3)
			returning id`, o.Customer, o.Item, o.Units).Scan(&parcel)
		if err != nil {
			return 0, err
		}
		letter := outbox.Message{ID: branch.From(ctx).Key(), Topic: "letters", Key: o.Customer,
			Payload: fmt.Appendf(nil, "%d of %s are on their way", o.Units, o.Item)}
		return parcel, outgoing.Add(ctx, postgres.Tx(tx), letter)
	})
	if err == nil {
		fmt.Fprintf(s.told, "%s: shipped\n", o.Customer)
	}
	return parcel, err
}

// deliver puts a letter into the customer's box. It is delivered at least once and stored
// once.
func (s *shop) deliver(ctx context.Context, m outbox.Message) error {
	_, err := once.Tx(ctx, s.db, arrived, once.Message{ID: m.ID}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into shop_letter (customer, words) values ($1, $2)`, m.Key, string(m.Payload))
		return err
	})
	return err
}

// letter waits for the customer's letter.
func (s *shop) letter(ctx context.Context, customer string) (words string, err error) {
	for {
		err := s.pool.QueryRow(ctx, `select words from shop_letter where customer = $1`, customer).Scan(&words)
		if !errors.Is(err, pgx.ErrNoRows) {
			return words, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}
