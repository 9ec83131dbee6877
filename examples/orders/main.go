// Command orders runs a shop whose orders are sagas. Each reserves the ordered units,
// charges a card at a bank, and ships with a letter to the customer.
//
// It does not isolate: others see that less is left before an order is paid. It may call
// the bank more than once, because it repeats a call whose answer was lost; the barrier in
// the bank's database charges once. It may also send a letter more than once; the record of
// the customer's letter box stores it once. shop.go shows the steps, bank.go a foreign
// service, and serve.go how processes share the work. Start several, and kill the active
// one.
//
//	orders -postgres postgres://me@127.0.0.1/test
//
// It places three orders in tables that begin with shop_. A second run finds
// them, and makes no second charge.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn/saga"
)

func main() {
	database := flag.String("postgres", "postgres://127.0.0.1/test", "`URL` of the database of shop and bank")
	patience := flag.Duration("patience", time.Minute, "how long all of it may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *patience)
	defer cancel()
	if err := trade(ctx, *database, os.Stdout); err != nil {
		log.Fatal("orders: ", err)
	}
}

// trade opens a bank and a shop, and places the orders.
func trade(ctx context.Context, database string, out io.Writer) (err error) {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := createTables(ctx, pool); err != nil {
		return err
	}
	address, closeBank, err := serveBank(newBank(postgres.Pool(pool)))
	if err != nil {
		return err
	}
	defer closeBank()
	s := newShop(database, pool, address, out)
	leave, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for _, o := range []Order{
		{Customer: "ann", Item: "lamp", Units: 2, Price: 60, Card: "visa"},
		{Customer: "bob", Item: "lamp", Units: 1, Price: 30, Card: "stolen"},
		{Customer: "eve", Item: "lamp", Units: 100, Price: 3000, Card: "visa"},
	} {
		if err := s.make(ctx, o, out); err != nil {
			return err
		}
	}
	return nil
}

// make places an order, named after its customer here, and prints how it ended.
func (s *shop) make(ctx context.Context, o Order, out io.Writer) error {
	outcome, err := s.orders.Do(ctx, s.engine, "order/"+o.Customer, o)
	switch {
	case errors.Is(err, saga.ErrCompensated):
		fmt.Fprintf(out, "%s: %s: %s\n", o.Customer, outcome.State, outcome.Reason)
		return nil
	case err != nil:
		return err // it continues, here or elsewhere: a repetition is the same order
	}
	letter, err := s.letter(ctx, o.Customer)
	fmt.Fprintf(out, "%s: %s, letter: %s\n", o.Customer, outcome.State, letter)
	return err
}

// serveBank serves on its own address until close.
func serveBank(bank http.Handler) (address string, close func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: bank, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return "http://" + l.Addr().String(), func() { server.Close(); <-served }, nil
}
