package postgres_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
)

// Shared by the shorter examples.
var (
	ctx   = context.Background()
	pool  *pgxpool.Pool
	db    *sql.DB
	locks *lock.Fenced
)

// Locks on one connection of their own, beside the user's pool.
func ExampleOpen() {
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	d, err := postgres.Open(ctx, pool.Config().ConnConfig, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42",
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `update account set balance = balance - 30 where id = 42`)
				return err
			})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Interlock begins and ends the transaction; the work has it as a pgx.Tx.
func ExamplePool() {
	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42",
			func(ctx context.Context, tx pgx.Tx) error {
				var balance int
				if err := tx.QueryRow(ctx, `select balance from account where id = 42`).Scan(&balance); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `update account set balance = $1 where id = 42`, balance-30)
				return err
			})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The same with database/sql.
func ExampleDB() {
	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.DB(db), fence.Table{}, c, "account/42",
			func(ctx context.Context, tx *sql.Tx) error {
				var balance int
				if err := tx.QueryRowContext(ctx, `select balance from account where id = 42`).Scan(&balance); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, `update account set balance = $1 where id = 42`, balance-30)
				return err
			})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A transaction of one's own enters before its first read. Nothing bounds how
// long it may stand still, and nothing asks the claim before it commits:
// fence.Tx does both.
func ExampleTx() {
	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			err := fence.Table{}.Enter(ctx, postgres.Tx(tx), "account/42", c.Token(), c.Owner())
			if err != nil {
				return err
			}
			// read, decide, write
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The same with database/sql.
func ExampleStdTx() {
	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // after a commit it does nothing
		err = fence.Table{}.Enter(ctx, postgres.StdTx(tx), "account/42", c.Token(), c.Owner())
		if err != nil {
			return err
		}
		// read, decide, write
		return tx.Commit()
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Locks behind a pooler, on the user's own pool.
func ExampleOpenTable() {
	pool, err := pgxpool.New(ctx, "postgres://localhost:6432/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	d, err := postgres.OpenTable(ctx, pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42",
			func(ctx context.Context, tx pgx.Tx) error { return nil })
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A lock that ends with the transaction, which is its guard.
func ExampleTxLock() {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := postgres.TxLock(ctx, postgres.Tx(tx), "account/42", time.Second); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update account set balance = balance - 30 where id = 42`)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Where somebody else does the work, nothing is to be done.
func ExampleTryTxLock() {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		mine, err := postgres.TryTxLock(ctx, postgres.Tx(tx), "nightly report")
		if err != nil || !mine {
			return err
		}
		_, err = tx.Exec(ctx, `refresh materialized view report`)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A value that only the holder of its claim can write; the token says so.
func ExampleNewValues() {
	values := postgres.NewValues(pool, "interlock_value")
	err := locks.Do(ctx, "limits", func(ctx context.Context, c interlock.Claim) error {
		return values.Put(ctx, "limits", driver.Value{Data: []byte(`{"daily": 500}`), Token: c.Token(), Source: c.Owner()})
	})
	if err != nil {
		log.Fatal(err)
	}
}

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
