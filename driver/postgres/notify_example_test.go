package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
)

// A bell of all processes that use the channel "outbox" of a database.
func ExampleNewBell() {
	ctx := context.Background()
	config, err := pgx.ParseConfig("postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	bell, err := postgres.NewBell(config, "outbox", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer bell.Close(ctx)
	stop := bell.Listen(func(string) { log.Print("something was committed") })
	defer stop()
	bell.Ring() // after a commit; outbox.Tx does it
}
