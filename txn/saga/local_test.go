package saga

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// addition is a step that is not repeatable: it adds n to the only account.
func addition(name string, db driver.Beginner[driver.SQL], table Appender, n int) Action[string, int] {
	return StepTx(name, db, table, func(ctx context.Context, tx driver.Tx[driver.SQL], _ string) (int, error) {
		_, err := tx.Exec(ctx, fmt.Sprintf(`update account set n = n + %d`, n))
		return n, err
	})
}

func forbidden(context.Context, string, *int) error { return errors.New("there is nothing to undo") }

// localEngine is a process that books and starts a saga in one transaction, then
// serves until the saga has ended.
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
	c := txntest.Owner(ctx, txntest.Present())
	served := make(chan error, 1)
	go func() { served <- e.coordinator.Run(ctx, c) }()
	defer func() { c.End(interlock.ErrReleased); <-served }()
	_, err = e.Wait(ctx, "1")
	return err
}

// book writes a booking, and what start does in the same transaction, unless there is
// a booking.
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

// booking is a database for one saga that begins in a transaction, and what is to be so in
// it in the end.
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

// unanswered is a database that does not answer one of its commits, which it has made
// or not.
type unanswered struct {
	driver.Beginner[driver.SQL]
	commits *atomic.Int64
	at      int64
	made    bool
}

func (u unanswered) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := u.Beginner.Begin(ctx)
	return unansweredTx{tx, u}, err
}

type unansweredTx struct {
	driver.Tx[driver.SQL]
	u unanswered
}

func (t unansweredTx) Commit(ctx context.Context) error {
	lost := t.u.commits.Add(1) == t.u.at
	if lost && !t.u.made {
		_ = t.Rollback(ctx)
	} else if err := t.Tx.Commit(ctx); err != nil {
		return err
	}
	if lost {
		return &interlock.Error{Op: "commit", Driver: "x", Kind: interlock.Uncertain, Err: errors.New("no answer")}
	}
	return nil
}

// TestLostCommit: a step whose commit was not answered is done once, whether it was
// committed or not; one that fails has added nothing, and one that is refused aborts.
func TestLostCommit(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		accounts(t, db)
		table := journal.NewTable(db, "")
		calls := 0
		var commits [2]atomic.Int64
		lossy := func(i int, made bool) driver.Beginner[driver.SQL] { return unanswered{db, &commits[i], 1, made} }
		flaky := StepTx("f", db, table, func(ctx context.Context, tx driver.Tx[driver.SQL], _ string) (int, error) {
			if _, err := tx.Exec(ctx, `update account set n = n + 100`); err != nil {
				return 0, err
			}
			if calls++; calls < 3 {
				return 0, errNetwork
			}
			return 1, nil
		}).Uncompensable().Retry(Policy{First: time.Millisecond})
		refused := StepTx("r", db, table, func(ctx context.Context, tx driver.Tx[driver.SQL], _ string) (int, error) {
			_, err := tx.Exec(ctx, `update account set n = n + 1000`)
			return 0, errors.Join(err, Fail(errSeat))
		}).Undo("unr", forbidden)
		good := Define("good", flaky, addition("a", lossy(0, true), table, 1).Undo("una", forbidden), addition("b", lossy(1, false), table, 10).Pivot())
		bad := Define("bad", refused, addition("c", db, table, 10000).Pivot())
		j, err := journal.New(table, &journal.Options{Shards: 1})
		ok(t, err)
		defer j.Close()
		e, err := build(j, &settings{Options: coordinator.Options{Poll: 10 * time.Millisecond}}, good, bad)
		ok(t, err)
		c := txntest.Owner(t.Context(), txntest.Present())
		served := make(chan error, 1)
		go func() { served <- e.coordinator.Run(context.Background(), c) }()
		defer func() { c.End(interlock.ErrReleased); <-served }()
		_, err = good.Do(t.Context(), e, "1", "in")
		ok(t, err)
		_, err = bad.Do(t.Context(), e, "2", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		if n := databases.One[int64](t, db, `select n from account`); n != 111 || commits[0].Load() != 1 || commits[1].Load() != 2 || calls != 3 {
			t.Errorf("%d added, %d and %d commits, %d calls", n, commits[0].Load(), commits[1].Load(), calls)
		}
		startTwice(t, db, table, e, good)
	})
}

// startTwice: a start that is rolled back has not happened; one behind it has, and a
// third attaches to it or is refused.
func startTwice(t *testing.T, db *databases.DB, table Appender, e *Engine, d Definition[string]) {
	t.Helper()
	stop := errors.New("stop")
	begin := func(input string, fails error) (err error) {
		for range 10 { // a deadlock with the owner's appends can be repeated
			err = db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
				return errors.Join(d.StartTx(ctx, e, table, tx, "3", input), fails)
			})
			if interlock.Kind(err) != interlock.Retryable {
				return err
			}
		}
		return err
	}
	if err := begin("in", stop); !errors.Is(err, stop) {
		t.Error(err)
	}
	_, err := e.Look(t.Context(), "3")
	wantKind(t, err, interlock.Definite, ErrNone)
	ok(t, begin("in", nil))
	ok(t, begin("in", nil))
	wantKind(t, begin("else", nil), interlock.Bug, ErrMismatch)
	_, err = e.Wait(t.Context(), "3")
	ok(t, err)
}

// TestHeirOfTransaction: who takes over too late to call anything undoes the steps of
// which nothing is known, and no step that would have left its record if it had happened.
func TestHeirOfTransaction(t *testing.T) {
	var db unanswered // nobody begins anything
	g := &target{}
	d := Define("order", g.undoable("a"), addition("b", db, journal.NewTable[driver.SQL](nil, ""), 1).Undo("unb", forbidden), g.undoable("c")).Timeout(time.Minute)
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
