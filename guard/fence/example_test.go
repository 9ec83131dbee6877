package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
)

// Withdraw under a lock, in a transaction that a stale holder cannot enter.
func ExampleTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil) // or redis, or etcd
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42", func(ctx context.Context, tx pgx.Tx) error {
			var balance int
			if err := tx.QueryRow(ctx, `select balance from account where id = 42`).Scan(&balance); err != nil {
				return err
			}
			if balance < 30 {
				return errors.New("not enough money")
			}
			_, err := tx.Exec(ctx, `update account set balance = $1 where id = 42`, balance-30)
			return err
		})
	})
	switch {
	case errors.Is(err, interlock.ErrStaleToken):
		fmt.Println("a newer holder has entered; nothing was done")
	case interlock.Kind(err) == interlock.Retryable:
		fmt.Println("nothing was done; try again")
	}
}

// The set-up of a deployment, and the later commands of an operator.
func ExampleTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	marks := fence.Table{Name: "ops.marks"} // the zero Table is "interlock_fence"
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return marks.Create(ctx, postgres.Tx(tx)) })
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		mark, err := marks.Show(ctx, postgres.Tx(tx), "account/42")
		fmt.Println(mark.Token, "was entered by", mark.Source)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The mark in the guarded row itself. It protects this row and no other, so the
// resource is the row's key.
func ExampleColumn() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil) // or redis, or etcd
	if err != nil {
		log.Fatal(err)
	}
	marks := fence.Column{Table: "account", Key: "id", Column: "mark"} // mark bigint
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), marks, c, "42", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `update account set state = 'closed' where id = 42`)
			return err
		})
	})
	if _, found := errors.AsType[*fence.NoRowError](err); found {
		fmt.Println("there is no such account, and no mark that could protect it")
	}
}

// Enter, read, and enter again with the write. A holder that was overtaken in between
// is rejected, and writes nothing.
func ExampleStore() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	data := space.Fence() // or redis.NewFence, or etcd.NewFence
	store := fence.NewStore(data)

	visit := func(c interlock.Claim, between func()) error {
		if err := store.Enter(ctx, c, "visitors"); err != nil {
			return err
		}
		seen, _ := data.Get("visitors")
		between()
		return store.Enter(ctx, c, "visitors", driver.Write{Key: "visitors", Value: append(seen, '|')})
	}
	err = locks.Do(ctx, "visitors", func(ctx context.Context, c interlock.Claim) error {
		fmt.Println("undisturbed:", visit(c, func() {}))
		err := visit(c, func() { // a pause, in which a newer holder enters
			newer, _ := c.Token().Next()
			_ = data.Enter(ctx, driver.Raise{Resource: "visitors", Token: newer})
		})
		fmt.Println("overtaken, refused:", errors.Is(err, interlock.ErrStaleToken))
		return nil
	})
	seen, _ := data.Get("visitors")
	fmt.Printf("%s %v\n", seen, err)
	// Output:
	// undisturbed: <nil>
	// overtaken, refused: true
	// | <nil>
}
