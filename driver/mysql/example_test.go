package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/guard/fence"
)

// Variables of the shorter examples.
var (
	ctx   = context.Background()
	db    *sql.DB
	locks *lock.Fenced
)

// Locks of a whole process on one connection.
func ExampleOpen() {
	config, err := client.ParseDSN("app@tcp(localhost:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	d, err := mysql.Open(ctx, config, &mysql.Options{TTL: 10 * time.Second})
	var proxy *mysql.ProxyError
	switch {
	case errors.As(err, &proxy):
		log.Fatal("not by way of a proxy; use OpenTable: ", err)
	case err != nil:
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
}

// Locks by rows, on the existing pool, behind any proxy.
func ExampleOpenTable() {
	db, err := sql.Open("mysql", "app@tcp(localhost:3306)/shop?interpolateParams=true")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	d, err := mysql.OpenTable(ctx, db, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	// A crash of the server must not give two processes one lock.
	locks, err := lock.NewFenced(d, &lock.Options{Require: interlock.Requirements{ExclusionSurvives: interlock.ServerCrash}})
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
}

// A guarded transaction: a stale holder cannot enter it.
func ExampleDB() {
	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, mysql.DB(db), fence.Table{}, c, "account/42", func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `update account set balance = balance - 30 where id = 42`)
			return err
		})
	})
	if interlock.Kind(err) == interlock.Retryable {
		fmt.Println("nothing was done; try again")
	}
}

// A mark that is raised in the user's transaction, before its first read.
func ExampleTx() {
	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := (fence.Table{}).Enter(ctx, mysql.Tx(tx), "account/42", c.Token(), c.Owner()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `update account set state = 'closed' where id = 42`); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The name of the lock in GET_LOCK, for a process without this library.
func ExampleLockName() {
	name := mysql.LockName("shop", mysql.DefaultNamespace, "account/42")
	fmt.Println(len(name), name[:10])
	// Output: 62 interlock.
}

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
