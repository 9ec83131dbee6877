package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
)

// A notifier of all processes that use the channel "outbox" of a database.
func ExampleNewNotifier() {
	ctx := context.Background()
	config, err := pgx.ParseConfig("postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	notifier, err := postgres.NewNotifier(config, "outbox", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer notifier.Close(ctx)
	stop := notifier.Listen(func(string) { log.Print("something was committed") })
	defer stop()
	notifier.Notify() // after a commit; outbox.Tx does it
}
