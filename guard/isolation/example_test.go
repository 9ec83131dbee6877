package isolation_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/isolation"
)

// A doctor goes off call if another one stays. Two concurrent transactions would both see the other
// doctor on call, and at REPEATABLE READ both would go: write skew. At SERIALIZABLE one of them is
// undone, runs again, and finds that its doctor must stay.
func ExampleSerializable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/clinic")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	errLast := errors.New("somebody has to stay on call")
	err = isolation.Serializable(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
		var onCall int
		if err := tx.QueryRow(ctx, `select count(*) from doctor where on_call`).Scan(&onCall); err != nil {
			return err
		}
		if onCall < 2 {
			return errLast
		}
		_, err := tx.Exec(ctx, `update doctor set on_call = false where name = 'alice'`)
		return err
	})
	var exhausted *isolation.ExhaustedError
	switch {
	case errors.Is(err, errLast):
		fmt.Println("stay")
	case errors.As(err, &exhausted):
		fmt.Println("nothing was done, too much was going on; try again later")
	case interlock.Kind(err) == interlock.Uncertain:
		fmt.Println("look whether it was done")
	}
}

// The same at READ COMMITTED, by a deliberate conflict. A transaction that changes who is
// on call first updates the row of the shift, and waits there for earlier ones.
func ExampleDo_materialisedConflict() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "root@tcp(localhost)/clinic")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	err = isolation.Do(ctx, mysql.DB(db), driver.ReadCommitted, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `update shift set changes = changes + 1 where day = '2026-05-01'`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `update doctor set on_call = 0 where name = 'alice'
			and (select n from (select count(*) as n from doctor where on_call = 1) as d) > 1`)
		return err
	})
	fmt.Println(err)
}

// The same by locking the rows that it reads. It protects existing rows: a rule that new
// rows could break needs one of the other two ways.
func ExampleDo_explicitLock() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/clinic")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = isolation.Do(ctx, postgres.Pool(pool), driver.ReadCommitted, nil, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `select name from doctor where on_call order by name for update`)
		if err != nil {
			return err
		}
		onCall, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(onCall) < 2 {
			return err
		}
		_, err = tx.Exec(ctx, `update doctor set on_call = false where name = 'alice'`)
		return err
	})
	fmt.Println(err)
}
