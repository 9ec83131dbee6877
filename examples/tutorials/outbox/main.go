// Command outbox stores orders and sends an event for each by webhook. See
// docs/tutorials/outbox.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/outbox/webhook"
)

func main() {
	database := flag.String("postgres", "postgres://postgres@127.0.0.1/shop", "where orders and events are")
	receiver := flag.String("receiver", "http://127.0.0.1:8090/events", "where events go")
	orders := flag.Int("orders", 3, "number of orders to store")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, *database)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	signer, err := webhook.NewSecret([]byte("a secret that both sides know, 32"))
	if err != nil {
		log.Fatal(err)
	}
	sink, err := webhook.New(*receiver, signer, nil)
	if err != nil {
		log.Fatal(err)
	}
	relay, err := outbox.Start(ctx, *database, outbox.Table{}, sink, nil) // creates its table
	if err != nil {
		log.Fatal(err)
	}
	defer relay.Close(context.Background())
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	for i := range *orders {
		if err := place(ctx, pool, fmt.Sprintf("order-%d-%d", time.Now().UnixMilli(), i)); err != nil {
			log.Fatal(err)
		}
	}
	<-ctx.Done()
}

// place stores an order and its event in one transaction.
func place(ctx context.Context, pool *pgxpool.Pool, id string) error {
	return outbox.Tx(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, 'lamp')", id); err != nil {
			return err
		}
		return outbox.Table{}.Add(ctx, postgres.Tx(tx), outbox.Message{
			ID: id, Topic: "orders", Key: id, Payload: fmt.Appendf(nil, `{"order": %q}`, id),
		})
	})
}
