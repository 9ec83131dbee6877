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

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/jackc/pgx/v5/pgxpool"
)

// addition is a step that is not repeatable: it adds n to the only account.
func addition(name string, db driver.Beginner[driver.SQL], table Appender, n int) Action[string, int] {
	return StepTx(name, db, table, func(ctx context.Context, tx driver.Tx[driver.SQL], _ string) (int, error) {
		_, err := tx.Exec(ctx, fmt.Sprintf(`update account set n = n + %d`, n))
		return n, err
	})
}

func forbidden(context.Context, string, *int) error { return errors.New("there is nothing to undo") }

// localEngine books and starts a saga in one transaction, then serves until the saga has
// ended.
func localEngine(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	table, steps := journal.NewTable(db, ""), crash.Beginner(db, at)
	j, err := journal.New(crash.Journal(table, at), &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	d := Define("order", addition("a", steps, table, 1).Undo("una", forbidden), addition("p", steps, table, 10).Pivot())
	e, err := build(j, &settings{Options: coordinator.Options{Poll: 20 * time.Millisecond}}, d)
	if err != nil {
		return err
	}
	if err := book(ctx, steps, func(tx driver.SQL) error { return d.StartTx(ctx, e, table, tx, "1", "in") }); err != nil {
		return err
	}
	defer txntest.Run(ctx, e.coordinator.Run)()
	_, err = e.Wait(ctx, "1")
	return err
}

// book writes a booking and calls start in the same transaction, unless there is a
// booking.
func book(ctx context.Context, db driver.Beginner[driver.SQL], start func(tx driver.SQL) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if n, err := databases.Value[int64](ctx, tx, `select count(*) from booking`); err != nil || n > 0 {
		return err
	}
	if _, err := tx.Exec(ctx, `insert into booking values (1)`); err != nil {
		return err
	}
	if err := start(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func accounts(tb testing.TB, db *databases.DB) {
	tb.Helper()
	db.Do(tb, journal.NewTable(db, "").Create)
	db.Exec(tb, `create table booking (id bigint)`, `create table account (n bigint)`, `insert into account values (0)`)
}

// booking returns a database for one saga that begins in a transaction, and checks its
// final state.
func booking(tb testing.TB, db *databases.DB) crash.Scene {
	tb.Helper()
	accounts(tb, db)
	return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
		tb.Helper()
		sum, booked := databases.One[int64](tb, db, `select n from account`), databases.One[int64](tb, db, `select count(*) from booking`)
		head, records, err := journal.NewTable(db, "").Read(tb.Context(), "1", 0)
		if sum != 11 || booked != 1 || err != nil || head.Ended.IsZero() {
			tb.Errorf("%d added, %d booked, %+v, %v; %d records", sum, booked, head, err, len(records))
		}
	}}
}

// TestKilledInTransaction: a saga begins if and only if the booking was made, and each
// of its steps adds exactly once, wherever the process is killed.
func TestKilledInTransaction(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		crash.Share(t, "local", crash.Part(t), 2, func(tb testing.TB) crash.Scene { return booking(tb, open(tb)) })
	}, databases.Pgx, databases.Maria)
}

// TestHeirOfTransaction: an owner that takes over too late to call anything undoes steps with
// an unknown outcome, but no step that would have its record if it had happened.
func TestHeirOfTransaction(t *testing.T) {
	db := &ram{} // no transaction begins
	g := &target{}
	d := Define("order", g.undoable("a"), addition("b", db, db, 1).Undo("unb", forbidden), g.undoable("c")).Timeout(time.Minute)
	p := d.defined()
	opening, err := p.opening("1", []byte(`"in"`), began, time.Time{})
	ok(t, err)
	c, err := newExecution(p, driver.Head{Transaction: "1"}, opening.opened(), false)
	ok(t, err)
	defer c.close()
	if m, err := c.next(began.Add(time.Hour)); err != nil || !m.write {
		t.Fatalf("%+v, %v", m, err)
	}
	var undone []string
	for _, p := range c.m.steps {
		if p.undoable() {
			undone = append(undone, p.key)
		}
	}
	same(t, "to be undone", undone, "a", "c")
}

// TestSmallPool: on a pool with one connection for each of the user's transactions, each of
// these can start a saga with a large input, start it again, and run a step with a large
// output. None needs a second connection.
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
	defer txntest.Run(ctx, e.coordinator.Run)()
	for i := range all {
		o, err := e.Wait(ctx, fmt.Sprint(i))
		if err != nil || len(o.Outputs.All()["large"]) != 20_002 {
			t.Errorf("%d: %v", i, err)
		}
	}
}
