package river_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	upstream "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/river"
	"github.com/interlock-dev/interlock/guard/once"
)

// A relay turns the messages of a shop's outbox into jobs of another database.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://127.0.0.1/shipping")
	if err != nil {
		log.Fatal(err)
	}
	client, err := upstream.NewClient(riverpgxv5.New(pool), &upstream.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sink := river.NewSink(client, postgres.Pool(pool), once.Inbox{Consumer: "jobs"}, nil)
	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", outbox.Table{}, sink, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer relay.Close(ctx)
}
