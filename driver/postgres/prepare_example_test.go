package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
)

// A branch is prepared here, and finished by a process that knows the decision. Package
// txn/twopc does that: it stores the decision before it returns it.
func ExampleOpenParticipant() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	bank, err := postgres.OpenParticipant(ctx, pool, "shop", nil)
	if err != nil {
		log.Fatal(err) // max_prepared_transactions is 0, for one
	}
	x := driver.XID{Transaction: "order-42", Branch: "bank"}
	tx, branch, err := bank.Begin(ctx, x)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = branch.Abandon(ctx) }() // unless it was prepared
	tag, err := tx.Exec(ctx, `update account set balance = balance - 30 where id = 42 and balance >= 30`)
	if err != nil || tag.RowsAffected() == 0 {
		return
	}
	vote, err := branch.Prepare(ctx)
	log.Print(vote, err)
	doubts, err := bank.InDoubt(ctx) // in any process, after any crash
	log.Print(doubts, err)
	log.Print(bank.Commit(ctx, x))
}
