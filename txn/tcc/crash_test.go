package tcc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// marking passes a point before and after each append.
type marking struct {
	driver.Journal
	at *crash.Points
}

func (m marking) Append(ctx context.Context, appends []driver.Append) []error {
	m.at.Pass()
	defer m.at.Pass()
	return m.Journal.Append(ctx, appends)
}

// marked passes a point before each transaction, and before and after its COMMIT: what
// is done between is done with that, or not at all.
type marked struct {
	driver.BeginnerAt[driver.SQL]
	at *crash.Points
}

func (m marked) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	m.at.Pass()
	tx, err := m.BeginnerAt.BeginAt(ctx, level)
	return markedTx{tx, m.at}, err
}

type markedTx struct {
	driver.Tx[driver.SQL]
	at *crash.Points
}

func (m markedTx) Commit(ctx context.Context) error {
	m.at.Pass()
	defer m.at.Pass()
	return m.Tx.Commit(ctx)
}

// transfer is 3 from alice to bob, with a row for what came.
type transfer struct {
	db            driver.BeginnerAt[driver.SQL]
	debit, credit Definition[Want, Want]
	holds         Holds[driver.SQL]
}

func newTransfer(db driver.BeginnerAt[driver.SQL], at *crash.Points) transfer {
	x := transfer{db: db, holds: Holds[driver.SQL]{DB: marked{db, at}}}
	x.debit = Define("debit", x.holds.Take())
	noted := x.holds
	noted.Confirmed = func(ctx context.Context, tx driver.SQL, w Want) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(`insert into came values ('%s', %d)`, branch.From(ctx).Transaction, w.N))
		return err
	}
	x.credit = Define("credit", noted.Give())
	return x
}

// managerRole is a process that runs the transfer and brings it to its end. In the mode
// "abandon" it does so only if it is the first, and others serve and sweep.
func managerRole(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	j, err := journal.New(marking{journal.NewTable(db, ""), at}, &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	x := newTransfer(db, at)
	o := &Options{}
	if args[2] == "abandon" {
		o = &Options{Hold: 4 * time.Second, Margin: time.Second}
	}
	m, err := New(c, o, x.debit, x.credit)
	if err != nil {
		return err
	}
	token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
	if err != nil {
		return err
	}
	cl := &claim{token: token}
	cl.ctx, cl.end = context.WithCancelCause(ctx)
	served := make(chan error, 1)
	go func() { served <- c.Run(ctx, cl) }()
	defer func() { cl.end(interlock.ErrReleased); <-served }()
	first, err := x.first(ctx)
	if err != nil {
		return err
	}
	if !first && args[2] == "abandon" {
		return x.clear(ctx, m)
	}
	if _, err = m.Run(ctx, "transfer", "1", x.debit.Try(Want{"alice", 3}), x.credit.Try(Want{"bob", 3})); err != nil && !errors.Is(err, ErrCancelled) {
		return err
	}
	_, err = m.Wait(ctx, "1")
	if errors.Is(err, ErrCancelled) {
		err = nil
	}
	return err
}

// first reports whether no process was here before.
func (x transfer) first(ctx context.Context) (bool, error) {
	tx, err := x.db.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	n, err := databases.Value[int64](ctx, tx, `select count(*) from started`)
	if err == nil {
		_, err = tx.Exec(ctx, `insert into started values (1)`)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	return n == 0, err
}

// clear sweeps until nothing is held.
func (x transfer) clear(ctx context.Context, m *Manager) error {
	for {
		if _, err := x.holds.Sweep(ctx, m.Decide, 10); err != nil {
			return err
		}
		held := 0
		err := x.holds.within(ctx, func(tx driver.Tx[driver.SQL]) error {
			n, err := databases.Value[int64](ctx, tx, `select count(*) from interlock_tcc_hold where state = 'held'`)
			held = int(n)
			return err
		})
		if err != nil {
			return err
		}
		if held == 0 {
			_, err := m.Wait(ctx, "1")
			if errors.Is(err, ErrCancelled) || errors.Is(err, ErrNone) {
				err = nil
			}
			return err
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// TestKilled: a process that is killed around any transaction or append leaves a
// transfer that the next one brings to its end, with the money that there was: if it is
// run again it is done, once; if nobody runs it again it is done, or nothing is held any
// more.
func TestKilled(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		modes := []string{"abandon"}
		if open(t).Dialect == driver.Postgres { // once is enough: what differs is the participant's side
			modes = append(modes, "again")
		}
		for _, mode := range modes {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				points := crash.Once(t, "manager", func(tb testing.TB) crash.Scene {
					db := open(tb)
					db.Do(tb, journal.NewTable(db, "").Create)
					db.Do(tb, Table{}.Create)
					db.Exec(tb, `create table came (id varchar(100), n bigint)`)
					db.Exec(tb, `create table started (id bigint)`)
					db.Do(tb, func(ctx context.Context, tx driver.SQL) error {
						return errors.Join(Table{}.Set(ctx, tx, "alice", 10), Table{}.Set(ctx, tx, "bob", 10))
					})
					return crash.Scene{Args: []string{db.Client, db.URL, mode}, Want: func(tb testing.TB) {
						tb.Helper()
						judgeKilled(tb, db, mode)
					}}
				})
				if points != 16 { // around two tries, the decision, two confirmations and the end
					t.Errorf("%d points", points)
				}
			})
		}
	}, databases.Pgx, databases.Maria)
}

func judgeKilled(tb testing.TB, db *databases.DB, mode string) {
	tb.Helper()
	var alice, bob Level
	db.Do(tb, func(ctx context.Context, tx driver.SQL) (err error) {
		if alice, err = (Table{}).Show(ctx, tx, "alice"); err == nil {
			bob, err = Table{}.Show(ctx, tx, "bob")
		}
		return err
	})
	came := databases.One[int64](tb, db, `select count(*) from came`)
	done := alice == Level{Capacity: 10, Sold: 3} && bob == Level{Capacity: 13} && came == 1
	nothing := alice == Level{Capacity: 10} && bob == Level{Capacity: 10} && came == 0
	if !done && (!nothing || mode == "again") {
		tb.Errorf("alice %+v, bob %+v, %d came", alice, bob, came)
	}
	table := journal.NewTable(db, "")
	head, records, err := table.Read(tb.Context(), "1", 0)
	decided := 0
	for _, r := range records {
		if r.Kind == recordDecide {
			decided++
		}
	}
	if err != nil || decided != 1 && (done || decided != 0) || decided == 1 && head.Ended.IsZero() {
		tb.Errorf("%d decisions, %+v, %v", decided, head, err)
	}
	if n, err := table.Unscheduled(tb.Context()); n != 0 || err != nil {
		tb.Errorf("%d unscheduled, %v", n, err)
	}
}
