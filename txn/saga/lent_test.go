package saga

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestSmallPool: on a pool that has as many connections as there are transactions of the
// user's, each of these can start a saga whose input is large, start it again, and be the
// step that has a large output. None needs a second connection.
func TestSmallPool(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, journal.NewTable(db, "").Create)
		if db.Dialect == driver.Postgres {
			config, err := pgxpool.ParseConfig(db.URL)
			ok(t, err)
			config.MaxConns = 4
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			ok(t, err)
			defer pool.Close()
			smallPool(t, postgres.Pool(pool))
			return
		}
		pool, err := sql.Open("mysql", db.URL)
		ok(t, err)
		defer pool.Close()
		pool.SetMaxOpenConns(4)
		smallPool(t, mysql.DB(pool))
	}, databases.Pgx, databases.Maria)
}

func smallPool[T any](t *testing.T, db driver.BeginnerAt[T]) {
	table, large := journal.NewTable(db, ""), strings.Repeat("x", 10_000)
	j, err := journal.New(table, &journal.Options{Shards: 1})
	ok(t, err)
	defer j.Close()
	const all = 4
	var together sync.WaitGroup // all steps are in their transactions
	together.Add(all)
	step := StepTx("large", db, table, func(_ context.Context, _ driver.Tx[T], input string) (string, error) {
		together.Done()
		together.Wait()
		return input + large, nil
	}).Uncompensable()
	d := Define("order", step)
	e, err := build(j, &settings{Options: coordinator.Options{Poll: 20 * time.Millisecond}}, d)
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, round := range []struct {
		input string
		is    error
	}{{large, nil}, {large, nil}, {large + "else", ErrMismatch}} {
		var work, begun sync.WaitGroup
		begun.Add(all)
		for i := range all {
			work.Go(func() {
				tx, err := db.Begin(ctx)
				begun.Done()
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = tx.Rollback(ctx) }()
				begun.Wait()
				err = d.StartTx(ctx, e, table, tx, fmt.Sprint(i), round.input)
				if err == nil {
					err = tx.Commit(ctx)
				}
				if !errors.Is(err, round.is) {
					t.Errorf("start %d: %v, want %v", i, err, round.is)
				}
			})
		}
		work.Wait()
		if t.Failed() {
			return
		}
	}
	c := txntest.Owner(ctx, txntest.Present())
	served := make(chan error, 1)
	go func() { served <- e.coordinator.Run(context.Background(), c) }()
	defer func() { c.End(interlock.ErrReleased); <-served }()
	for i := range all {
		o, err := e.Wait(ctx, fmt.Sprint(i))
		if err != nil || len(o.Outputs.All()["large"]) != 20_002 {
			t.Errorf("%d: %v", i, err)
		}
	}
}
