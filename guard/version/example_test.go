package version_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/version"
)

// A consumer that keeps a table of orders, of which there may be no row yet.
func ExampleTable() {
	type event struct {
		order, status string
		stamp         version.Stamp
	}
	seen := version.Table{}
	consume := func(ctx context.Context, pool *pgxpool.Pool, e event) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			outcome, err := seen.Apply(ctx, postgres.Tx(tx), version.Change{
				Entity: "order/" + e.order, Stamp: e.stamp, Terminal: e.status == "cancelled",
			})
			if err != nil || outcome != version.Applied {
				return err // an old or known event needs nothing: acknowledge it
			}
			_, err = tx.Exec(ctx, `insert into orders (id, status) values ($1, $2)
				on conflict (id) do update set status = excluded.status`, e.order, e.status)
			return err
		})
	}
	_ = consume
}

// The stamp in the row itself: for entities whose rows exist.
func ExampleColumn() {
	stock := version.Column{Table: "stock", Key: "sku", Version: "version", Tie: "producer"}
	set := func(ctx context.Context, tx pgx.Tx, sku string, s version.Stamp, level int) error {
		outcome, err := stock.Apply(ctx, postgres.Tx(tx), version.Change{Entity: sku, Stamp: s})
		if err != nil || outcome != version.Applied {
			return err
		}
		_, err = tx.Exec(ctx, `update stock set level = $2 where sku = $1`, sku, level)
		return err
	}
	_ = set
}

// Read, compute, write: only if the row is unchanged since the read.
func ExampleUpdate() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	type Account struct {
		Owner   string
		Balance int64
	}
	accounts := version.Rows[Account]{
		Table: "account", Key: "id", Version: "version",
		Columns: []string{"owner", "balance"},
		Fields:  func(a *Account) []any { return []any{&a.Owner, &a.Balance} },
	}
	updater, err := version.NewUpdater(nil)
	if err != nil {
		log.Fatal(err)
	}
	err = version.Update(ctx, updater, postgres.Pool(pool), accounts, "42", func(_ context.Context, a *Account) error {
		if a.Balance < 30 {
			return errors.New("not enough money")
		}
		a.Balance -= 30
		return nil
	})
	if errors.Is(err, version.ErrConflict) {
		fmt.Println("too many writers; nothing was done")
	}
}

// Two rows with one version each: fn checks for conflicts itself.
func ExampleTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	updater, err := version.NewUpdater(nil)
	if err != nil {
		log.Fatal(err)
	}
	err = version.Tx(ctx, updater, postgres.Pool(pool), "account/42", func(ctx context.Context, tx pgx.Tx) error {
		var balance, seen int64
		if err := tx.QueryRow(ctx, `select balance, version from account where id = 42`).Scan(&balance, &seen); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update account set balance = $1, version = version + 1 where id = 42 and version = $2`, balance-30, seen)
		if err == nil && tag.RowsAffected() == 0 {
			return version.ErrConflict
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Events of an order arrive out of order, and one twice.
func ExampleStore() {
	ctx := context.Background()
	orders, err := version.NewStore(memory.NewVersions(), nil) // or redis.NewVersions, or etcd.NewVersions
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range []driver.Versioned{
		{Stamp: version.Stamp{Version: 2}, Data: []byte("paid")},
		{Stamp: version.Stamp{Version: 1}, Data: []byte("created")},
		{Stamp: version.Stamp{Version: 3}, Data: []byte("cancelled"), Terminal: true},
		{Stamp: version.Stamp{Version: 3}, Data: []byte("cancelled"), Terminal: true},
		{Stamp: version.Stamp{Version: 4}, Data: []byte("packed")},
	} {
		outcome, stored, err := orders.Apply(ctx, "order/42", e)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s is %v: the order is %s\n", e.Data, outcome, stored.Data)
	}
	// Output:
	// paid is applied: the order is paid
	// created is stale: the order is paid
	// cancelled is applied: the order is cancelled
	// cancelled is duplicate: the order is cancelled
	// packed is terminal: the order is cancelled
}

func ExampleStore_Update() {
	ctx := context.Background()
	var stats version.Stats
	counters, err := version.NewStore(memory.NewVersions(), &version.Options{Hooks: stats.Hooks()})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		err := counters.Update(ctx, "visits", func(_ context.Context, was driver.Versioned) (driver.Versioned, error) {
			return driver.Versioned{Data: append(was.Data, '|')}, nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	v, err := counters.Get(ctx, "visits")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(v.Data), "by", stats.Counts().Attempts, "attempts, conflict rate", stats.Counts().ConflictRate())
	// Output: ||| by 3 attempts, conflict rate 0
}

// A producer stamps an event after it has seen one of another producer, whose clock is ahead.
func ExampleClock() {
	clock, err := version.NewClock(nil)
	if err != nil {
		log.Fatal(err)
	}
	seen := clock.Stamp("bank") // in another process, on another machine
	if err := clock.Observe(seen.Version); err != nil {
		log.Fatal(err) // too far in the future: do not apply that event
	}
	done := clock.Stamp("shop")
	fmt.Println("newer:", done.Compare(seen) > 0)
	// Output: newer: true
}
