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
