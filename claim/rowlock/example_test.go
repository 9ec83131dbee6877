package rowlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/observe"
)

// A transfer locks both accounts, in the same order in both directions.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	accounts := rowlock.Rows{Table: "account", Key: "id", Wait: 2 * time.Second}
	o := &rowlock.Options{Hooks: &observe.RowLock{Slow: func(e observe.RowsSlow) {
		log.Printf("%d rows of %s are locked since %v", e.Rows, e.Table, e.Held)
	}}}
	err = rowlock.Tx(ctx, postgres.Pool(pool), accounts, []string{"bob", "alice"}, o,
		func(ctx context.Context, tx pgx.Tx, locked []string) error {
			if len(locked) != 2 {
				return fmt.Errorf("only %q exist", locked)
			}
			// From here on no other transaction changes either row.
			_, err := tx.Exec(ctx, "update account set balance = balance + case id when 'bob' then -10 else 10 end where id = any($1)", locked)
			return err
		})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleRows_Clause() {
	fmt.Println(rowlock.Rows{Mode: rowlock.SkipLocked}.Clause(driver.Postgres))
	// Output: FOR UPDATE SKIP LOCKED <nil>
}
