package mysql_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
)

// A branch is prepared here, and finished by a process with the decision. Package txn/twopc does
// that: it stores the decision before it returns it.
func ExampleOpenParticipant() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "app@tcp(localhost:3306)/bank")
	if err != nil {
		log.Fatal(err)
	}
	bank, err := mysql.OpenParticipant(ctx, db, "shop", nil)
	if err != nil {
		log.Fatal(err) // such as a node of a Galera cluster
	}
	defer bank.Close()
	x := driver.XID{Transaction: "order-42", Branch: "bank"}
	conn, branch, err := bank.Begin(ctx, x)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = branch.Abandon(ctx) }() // unless it was prepared
	n, err := mysql.Session(conn).Exec(ctx, `update account set balance = balance - 30 where id = 42 and balance >= 30`)
	if err != nil || n == 0 {
		return
	}
	vote, err := branch.Prepare(ctx)
	log.Print(vote, err)
	doubts, err := bank.InDoubt(ctx) // in any process, after any crash
	log.Print(doubts, err)
	log.Print(bank.Commit(ctx, x))
}
