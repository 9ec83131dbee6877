package tcc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// marked passes a point before each transaction, and before and after its COMMIT: work in
// between takes effect with that, or not at all.
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

// transfer moves 3 from alice to bob, with a row for each arrival.
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

// The modes of successive processes of a transfer.
const (
	repeated  = "repeated"  // each runs it
	abandoned = "abandoned" // the first one runs it, others serve and sweep until nothing is held
)

// engineRole runs the transfer and completes it, according to the mode.
func engineRole(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	j, err := journal.New(crash.Journal(journal.NewTable(db, ""), at), &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	x := newTransfer(db, at)
	m, err := New(c, &Options{Hold: 20 * time.Second}, x.debit, x.credit) // what a stopped process has not decided waits that long
	if err != nil {
		return err
	}
	defer txntest.Run(ctx, c.Run)()
	first, err := x.first(ctx)
	if err != nil {
		return err
	}
	if !first && args[2] != repeated {
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

// first reports whether this is the first process.
func (x transfer) first(ctx context.Context) (bool, error) {
	n, err := x.unmarked(ctx, `select count(*) from started`, `insert into started values (1)`)
	return n == 0, err
}

// unmarked reads a number and runs a statement, without a point.
func (x transfer) unmarked(ctx context.Context, query, statement string) (n int64, err error) {
	tx, err := x.db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if n, err = databases.Value[int64](ctx, tx, query); err == nil && statement != "" {
		_, err = tx.Exec(ctx, statement)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	return n, err
}

// clear completes the transaction as participants do that ask at once, not when the hold ends.
func (x transfer) clear(ctx context.Context, m *Engine) error {
	const held = `select count(*) from interlock_tcc_hold where state = 'held'`
	left, err := x.unmarked(ctx, held, `update interlock_tcc_hold set ask_ms = 0 where state = 'held'`)
	for ; left > 0 && err == nil; left, err = x.unmarked(ctx, held, "") {
		if _, err := x.holds.Sweep(ctx, m.Decide, 10); err != nil {
			return err
		}
		backoff.Sleep(ctx, 10*time.Millisecond)
	}
	if err == nil {
		_, err = m.Decide(ctx, "1", "debit") // in case the first process held nothing
	}
	if err == nil {
		_, err = m.Wait(ctx, "1")
	}
	if errors.Is(err, ErrCancelled) {
		err = nil
	}
	return err
}

// TestKilled: if a process is killed around any transaction or append, the next one
// completes its transfer, and the sum of money stays the same. If it runs again, it is done
// once. If it does not, it is done, or nothing remains held.
func TestKilled(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		modes := []string{abandoned}
		if open(t).Dialect == driver.Postgres { // once is enough: only the participant's side differs
			modes = append(modes, repeated)
		}
		for _, mode := range modes {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				part, of := crash.Part(t), 2
				if mode == repeated {
					part, of = 0, 1
				}
				points := crash.Share(t, "engine", part, of, func(tb testing.TB) crash.Scene { return killing(tb, open(tb), mode) })
				if points < 16 { // around two tries, the decision, two confirmations and the end; more if one is repeated
					t.Errorf("%d points", points)
				}
			})
		}
	}, databases.Pgx, databases.Maria)
}

// TestAsleep pauses a process anywhere until another one has completed the transfer: when it
// wakes up it appends nothing, and moves nothing.
func TestAsleep(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		crash.Asleep(t, "engine", "engine", 4, func(tb testing.TB) crash.Sleeper {
			db := open(tb)
			db.Exec(tb, crash.EndIdle)
			return crash.Sleeper{Scene: killing(tb, db, repeated), Left: func(tb testing.TB) string {
				tb.Helper()
				judgeKilled(tb, db, repeated)
				return strings.Join(txntest.Records(tb, journal.NewTable(db, ""), "1"), " ")
			}}
		})
	}, databases.Pgx)
}

// killing returns a database for one transfer, and checks its final state.
func killing(tb testing.TB, db *databases.DB, mode string) crash.Scene {
	tb.Helper()
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
	if !done && (!nothing || mode == repeated) {
		tb.Errorf("alice %+v, bob %+v, %d came", alice, bob, came)
	}
	table := journal.NewTable(db, "")
	head, _, err := table.Read(tb.Context(), "1", 0)
	decided := strings.Count(strings.Join(txntest.Records(tb, table, "1"), " "), recordDecide+":")
	if err != nil || decided != 1 && (done || decided != 0) || decided == 1 && head.Ended.IsZero() {
		tb.Errorf("%d decisions, %+v, %v", decided, head, err)
	}
	unscheduled(tb, table)
}

// TestCrashLoop: a branch that crashes every process that settles it makes the transaction
// a dead letter, with its decision, until an operator continues it.
func TestCrashLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		var letters txntest.Events[observe.TCCDead]
		good, bad := newVenue("good", 10), newVenue("bad", 10)
		var crash atomic.Bool
		crash.Store(true)
		bad.bad = func(c branch.Call) (before, after error) {
			if crash.Load() && c.Operation == branch.Confirm {
				<-gate
			}
			return nil, nil
		}
		o := &Options{Remind: time.Hour, Hooks: &observe.TCC{Dead: letters.Add}}
		r := serve(t, nil, 1, o, good, bad)
		ok(t, txntest.Second(r.run(t.Context(), "1", good, bad)))
		for n := int64(2); n <= 20; n++ {
			synctest.Wait()
			r = serve(t, r.store, n, o, good, bad)
		}
		out, err := r.Wait(t.Context(), "1")
		if wantKind(t, err, interlock.Uncertain, ErrDeadLetter); out.State != DeadLetter || out.Decision != Confirm || !strings.Contains(out.Halted, "taken over 10 times") ||
			!strings.Contains(err.Error(), "is halted after the decision to confirm") {
			t.Fatalf("%+v, %v", out, err)
		}
		synctest.Wait()
		dead := letters.All()
		if calls := bad.called("1/bad/confirm"); calls > 10 || len(dead) != 1 || !slices.Contains(dead[0].Branches, "bad") || dead[0].Halted != out.Halted {
			t.Errorf("%d calls, reported %+v", calls, dead)
		}
		time.Sleep(65 * time.Minute)
		if synctest.Wait(); len(letters.All()) != 2 {
			t.Errorf("reported %d times in an hour", len(letters.All()))
		}
		crash.Store(false)
		ok(t, NewOperator(r.coordinator.Journal()).Retry(t.Context(), "1", "", By{Actor: "ann", Reason: "the process has more memory now"}))
		r.coordinator.Nudge("1")
		if out, err = r.Wait(t.Context(), "1"); err != nil || out.State != Confirmed || bad.state("1") != "confirmed" || good.state("1") != "confirmed" {
			t.Errorf("%+v, %v", out, err)
		}
		close(gate)
		unscheduled(t, r.store.Journal)
	})
}

// TestHandOvers: owners that end cleanly while a branch is called do not count as crashed.
func TestHandOvers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var up atomic.Bool
		r, one := serveOne(t, nil, hanging{&up})
		ok(t, txntest.Second(r.Run(t.Context(), "booking", "1", one.Try("seat"))))
		for n := int64(2); n < 17; n++ {
			synctest.Wait()
			r.stop()
			<-r.served
			r.serve(t, n)
		}
		up.Store(true)
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
	})
}

// TestYields: an owner that gives its shard away while a branch is called, whose call then fails, does not
// count as crashed.
func TestYields(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var up atomic.Bool
		r, one := serveOne(t, &Options{Timeout: time.Minute}, hanging{&up})
		ok(t, txntest.Second(r.Run(t.Context(), "booking", "1", one.Try("seat"))))
		r.stop()
		<-r.served
		txntest.Yields(t, r.coordinator.Serve, func(id string) error {
			return txntest.Second(r.coordinator.Journal().Begin(t.Context(), id, "foreign:x", time.Now(), journal.Entry{Kind: "begin"}))
		})
		up.Store(true)
		r.serve(t, 17)
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
	})
}

// hanging is a resource whose confirmations fail after 15 s, or with their context, until it is up.
type hanging struct{ up *atomic.Bool }

func (hanging) Try(_ context.Context, q string, _ time.Time) (string, error) { return q, nil }
func (hanging) Cancel(context.Context, string, *string) error                { return nil }

func (h hanging) Confirm(ctx context.Context, _ string, _ string) error {
	if h.up.Load() {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(15 * time.Second):
	}
	return errNetwork
}

// TestInProgressIsNotRecorded: a participant that processes a call for long adds no records.
func TestInProgressIsNotRecorded(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		calls := 0
		hotel.bad = func(c branch.Call) (before, after error) {
			if c.Operation != branch.Confirm || calls == 1000 {
				return nil, nil
			}
			if calls++; calls <= 4 {
				return errNetwork, nil
			}
			return branch.InProgress(time.Second), nil
		}
		r := serve(t, nil, 1, nil, hotel)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
		if n := len(txntest.Records(t, r.store.Journal, "1")); calls != 1000 || n > 8 {
			t.Errorf("%d calls, %d records", calls, n)
		}
	})
}

// TestNoCrashLoop: frequent changes of the owner do not halt transactions whose calls are
// answered, and the last failure of a branch is known.
func TestNoCrashLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bad := newVenue("bad", 10)
		failed := 0
		bad.bad = func(c branch.Call) (before, after error) {
			if c.Operation == branch.Confirm {
				failed++
				return fmt.Errorf("failure %d: no route", failed), nil
			}
			return nil, nil
		}
		r := serve(t, nil, 1, nil, bad)
		ok(t, txntest.Second(r.run(t.Context(), "1", bad)))
		for n := int64(2); n <= 30; n++ {
			synctest.Wait()
			time.Sleep(10 * time.Minute)
			r.stop()
			<-r.served
			r = serve(t, r.store, n, nil, bad)
		}
		synctest.Wait()
		out, err := r.Look(t.Context(), "1")
		if ok(t, err); out.State != Confirming || len(out.Failing) != 1 || out.Failing[0].Attempts < 30 || !strings.Contains(out.Failing[0].Err, "no route") {
			t.Errorf("%d failures, %+v", failed, out)
		}
		if n := len(txntest.Records(t, r.store.Journal, "1")); n > 120 {
			t.Errorf("%d records", n)
		}
	})
}
