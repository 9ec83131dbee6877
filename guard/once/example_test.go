package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/guard/once"
)

// The effect of a message, and the message that follows from it, in the transaction
// that records it: a duplicate sends nothing again.
func ExampleTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox, box := once.Inbox{Consumer: "billing"}, outbox.Table{}
	outcome, err := once.Tx(ctx, postgres.Pool(pool), inbox, once.Message{ID: "order-7-paid", Payload: []byte(`{"order": 7}`)},
		func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `update orders set state = 'paid' where id = 7`); err != nil {
				return err
			}
			// A message for other services: a relay sends it after the commit.
			return box.Add(ctx, postgres.Tx(tx), driver.Message{ID: "order-7-invoice", Topic: "invoices", Key: "order/7", Payload: []byte(`{}`)})
		})
	switch {
	case err == nil:
		fmt.Println("acknowledge it:", outcome)
	case outcome == once.Mismatched:
		fmt.Println("a dead letter:", err)
	default:
		fmt.Println("let it be delivered again:", err)
	}
}

// A whole poll of a broker in one transaction: one statement finds the new messages.
func ExampleBatchTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	polled := []once.Message{{ID: "a"}, {ID: "b"}, {ID: "a"}}
	outcomes, err := once.BatchTx(ctx, postgres.Pool(pool), once.Inbox{Consumer: "search"}, polled,
		func(ctx context.Context, tx pgx.Tx, fresh []once.Message) error {
			var rows [][]any
			for _, m := range fresh {
				rows = append(rows, []any{m.ID})
			}
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"documents"}, []string{"id"}, pgx.CopyFromRows(rows))
			return err
		})
	for i, outcome := range outcomes {
		if outcome == once.Mismatched {
			fmt.Println("a dead letter:", polled[i].ID)
		}
	}
	if err != nil {
		fmt.Println("let all of them be delivered again:", err)
	}
}

// A producer that numbers its messages for each key: one row a key remembers all.
func ExampleInbox() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "shop@/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	inbox := once.Inbox{Consumer: "stock"}
	m := once.Message{Key: "item/42", Epoch: 1, Seq: 17, Payload: []byte("-3")}
	_, err = once.Tx(ctx, mysql.DB(db), inbox, m, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update item set stock = stock - 3 where id = 42`)
		return err
	})
	if gap, found := errors.AsType[*once.GapError](err); found {
		fmt.Printf("%d came, and %d is missing\n", gap.Got, gap.Want)
	}
}

// The set-up of a deployment, and the periodic work of any process.
func ExampleInbox_Clean() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox := once.Inbox{Consumer: "billing"}
	inTx := func(do func(tx pgx.Tx) error) {
		if err := pgx.BeginFunc(ctx, pool, do); err != nil {
			log.Fatal(err)
		}
	}
	inTx(func(tx pgx.Tx) error { return inbox.Create(ctx, postgres.Tx(tx)) })
	for n := int64(1000); n == 1000; {
		inTx(func(tx pgx.Tx) (err error) {
			n, err = inbox.Clean(ctx, postgres.Tx(tx), 1000)
			return err
		})
	}
}

// An effect outside of SQL.
func ExampleBestEffort() {
	ctx := context.Background()
	store, err := once.NewBestEffort(memory.NewOnce(), "mailer", nil) // or redis.NewOnce(client)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		outcome, err := store.Once(ctx, once.Message{ID: "welcome-alice"}, func(context.Context) error {
			fmt.Println("a mail to alice") // with the message's ID, if the mail server deduplicates by it
			return nil
		})
		fmt.Println(outcome, err)
	}
	// Output:
	// a mail to alice
	// done <nil>
	// duplicate <nil>
}
