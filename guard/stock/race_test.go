package stock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestRaces runs races of holds that expire on each database, with a connection for each concurrent
// buyer. No transaction may be undone. The suite of driver.Stock has the other races.
func TestRaces(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, race := range map[string]func(*testing.T, world){"turmoil": raceTurmoil, "baskets": raceBaskets} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, open(t))
				if w.Dialect == driver.Postgres {
					many, closed, err := databases.Connect(t.Context(), w.Client, w.URL+fmt.Sprintf("&pool_max_conns=%d", atOnce))
					ok(t, err)
					t.Cleanup(closed)
					w.BeginnerAt = many
				}
				race(t, w)
				w.sound(t)
			})
		}
	}, databases.Pgx, databases.Maria)
}

// atOnce is the number of concurrent buyers.
const atOnce = 16

// crowd runs fn for each of n buyers, some of them at a time.
func crowd(n int, fn func(i int, r *rand.Rand)) {
	next := make(chan int)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range next {
				fn(i, rand.New(rand.NewPCG(5, uint64(i))))
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// raceTurmoil: buyers hold for a moment, are late, cancel, and make two calls at once.
// The stock agrees with the last answer of each.
func raceTurmoil(t *testing.T, w world) {
	w.set(t, "x", 60)
	var bought, late atomic.Int64
	crowd(500, func(i int, r *rand.Rand) {
		id, n, ttl := fmt.Sprint("buyer/", i), 1+r.Int64N(3), time.Millisecond*time.Duration(1+r.IntN(15))
		confirm := r.IntN(8) == 0
		if confirm && r.IntN(4) == 0 {
			ttl = time.Hour // is in time on any machine
		}
		if err := w.hold(id, ttl, stock.Line{Item: "x", N: n}); err != nil {
			if short, found := errors.AsType[*stock.ShortError](err); !found || short.Available >= short.Want {
				t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
			}
			return
		}
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // the buyer thinks
		cancel := !confirm && r.IntN(2) == 0 || confirm && r.IntN(2) == 0
		var both sync.WaitGroup
		var confirmed, cancelled error
		if confirm {
			both.Go(func() { confirmed = w.confirm(id) })
		}
		if cancel {
			both.Go(func() { cancelled = w.cancel(id) })
		}
		both.Wait()
		var no *stock.SettledError
		switch {
		case confirm && confirmed == nil:
			if cancel && (!errors.As(cancelled, &no) || no.State != driver.StockConfirmed) {
				t.Errorf("%s is confirmed, and cancelled: %v", id, cancelled)
			}
			bought.Add(n)
		case confirm && !errors.As(confirmed, &no), cancelled != nil:
			t.Errorf("%s: confirmed %v, cancelled %v", id, confirmed, cancelled)
		case confirm && no.State == driver.StockExpired:
			late.Add(1)
		case confirm && !cancel:
			t.Errorf("%s: %v, and nobody cancelled it", id, confirmed)
		}
	})
	if level := w.level(t, "x"); level.Sold != bought.Load() || level.Available() < 0 {
		t.Errorf("%d units were bought: %+v", bought.Load(), level)
	}
	if bought.Load() == 0 {
		t.Error("nothing was bought: this shows nothing")
	}
	t.Logf("%d units were bought, %d came too late", bought.Load(), late.Load())
}

// raceBaskets: buyers hold several items each, in any order: there is no deadlock, and
// no buyer gets a part of the order.
func raceBaskets(t *testing.T, w world) {
	items := []string{"a", "b", "c", "d"}
	for _, item := range items {
		w.set(t, item, 40)
	}
	var bought atomic.Int64
	crowd(200, func(i int, r *rand.Rand) {
		var lines []stock.Line
		for _, at := range r.Perm(len(items))[:1+r.IntN(3)] {
			lines = append(lines, stock.Line{Item: items[at], N: 1 + r.Int64N(2)})
		}
		id := fmt.Sprint("basket/", i)
		ttl := []time.Duration{time.Hour, 2 * time.Millisecond}[r.IntN(2)]
		err := w.hold(id, ttl, lines...)
		if err == nil && r.IntN(3) > 0 {
			err = w.confirm(id)
		}
		var short *stock.ShortError
		var settled *stock.SettledError
		switch {
		case err == nil:
			bought.Add(1)
		case !errors.As(err, &short) && !errors.As(err, &settled):
			t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
		}
	})
	if bought.Load() == 0 {
		t.Error("nobody had anything: this shows nothing")
	}
}

// TestOverlaps tests changes of other transactions between two statements, or before their commit.
func TestOverlaps(t *testing.T) {
	t.Parallel()
	eachWorld(t, map[string]func(*testing.T, world){
		"units that come back are waited for":           testUnitsThatComeBack,
		"a sale beside one that is cancelled is a sale": testSaleBesideCancelled,
		"a unique index behind it undoes a sale":        testUniqueIndexBehind,
		"an id forgotten just now was not reused":       testForgottenMeanwhile,
		"a locked reservation hides no other":           testLockedExpired,
	})
}

// call is a call of a table, on its own items.
type call = func(ctx context.Context, db driver.SQL) error

// whileOpen runs call while a transaction that ran first is open, and then commits that; call must
// wait for the commit.
func (w world) whileOpen(t *testing.T, first, call call) error {
	t.Helper()
	tx := w.Begun(t, driver.ReadCommitted)
	ok(t, first(t.Context(), tx))
	done := make(chan error, 1)
	go func() { done <- w.in(call) }()
	testbed.Eventually(t, "the second waits", bound, func() bool { return w.Waiting(t) == 1 })
	ok(t, tx.Commit(t.Context()))
	return <-done
}

// testUnitsThatComeBack: all units of an item are held, in the snapshot of every statement that
// begins before the first transaction ends. A change based on that snapshot violates the CHECK, so
// a statement must not try it.
func testUnitsThatComeBack(t *testing.T, w world) {
	for i, back := range []func(item string) call{
		func(item string) call {
			return func(ctx context.Context, db driver.SQL) error { return w.Cancel(ctx, db, "of "+item) }
		},
		func(item string) call {
			return func(ctx context.Context, db driver.SQL) error {
				return w.Adjust(ctx, db, stock.Adjustment{Item: item, Operation: "more", Delta: 1})
			}
		},
	} {
		for j, want := range []func(item string) call{
			func(item string) call {
				return func(ctx context.Context, db driver.SQL) error {
					return w.Hold(ctx, db, "new of "+item, time.Hour, one(item))
				}
			},
			func(item string) call {
				return func(ctx context.Context, db driver.SQL) error {
					return w.Adjust(ctx, db, stock.Adjustment{Item: item, Operation: "less", Delta: -1})
				}
			},
		} {
			item := fmt.Sprint(i, j)
			w.set(t, item, 1)
			ok(t, w.hold("of "+item, time.Hour, one(item)))
			if err := w.whileOpen(t, back(item), want(item)); err != nil {
				t.Errorf("%s: %v (%v)", item, err, interlock.Kind(err))
			}
			if level := w.level(t, item); level.Available() != 0 {
				t.Errorf("%s is %+v", item, level)
			}
		}
	}
	w.sound(t)
}

// testSaleBesideCancelled: settling has no condition on the item. It needs none,
// because its units are held in every version of the item that it may see.
func testSaleBesideCancelled(t *testing.T, w world) {
	w.set(t, "a", 2)
	ok(t, w.hold("gone", time.Hour, one("a")))
	ok(t, w.hold("sold", time.Hour, one("a")))
	ok(t, w.whileOpen(t,
		func(ctx context.Context, db driver.SQL) error { return w.Cancel(ctx, db, "gone") },
		func(ctx context.Context, db driver.SQL) error { return w.Confirm(ctx, db, "sold") }))
	w.has(t, "a", 2, 0, 1)
}

// testLockedExpired: the reservation that expired first is being cancelled, and waits for another item. The units of the
// next one are taken.
func testLockedExpired(t *testing.T, w world) {
	w.set(t, "a", 5)
	w.set(t, "b", 2)
	ok(t, w.hold("first", time.Hour, one("a"), one("b")))
	ok(t, w.hold("second", time.Hour, one("b")))
	w.lapse(t, "first", 3*time.Hour)
	w.lapse(t, "second", 2*time.Hour)
	busy := w.Begun(t, driver.ReadCommitted)
	ok(t, w.Hold(t.Context(), busy, "busy", time.Hour, one("a")))
	cancelled := make(chan error, 1)
	go func() { cancelled <- w.cancel("first") }()
	testbed.Eventually(t, "the cancellation waits", bound, func() bool { return w.Waiting(t) == 1 })
	ok(t, w.hold("third", time.Hour, one("b")))
	ok(t, busy.Commit(t.Context()))
	ok(t, <-cancelled)
	w.has(t, "b", 2, 1, 0)
	wantSettled(t, w.confirm("second"), "second", driver.StockExpired)
}

// testUniqueIndexBehind: a buyer books without the stock.
func testUniqueIndexBehind(t *testing.T, w world) {
	w.Exec(t, `create table booking (id int primary key, seat varchar(9) not null)`,
		`create unique index one_booking_of_a_seat on booking (seat)`,
		`insert into booking (id, seat) values (1, '12A')`)
	w.set(t, "12A", 1)
	ok(t, w.hold("r", time.Hour, one("12A")))
	wantKind(t, w.in(func(ctx context.Context, db driver.SQL) error {
		ok(t, w.Confirm(ctx, db, "r"))
		_, err := db.Exec(ctx, `insert into booking (id, seat) values (2, '12A')`)
		return err
	}), interlock.Definite, nil)
	w.has(t, "12A", 1, 1, 0)
}

// testForgottenMeanwhile: a sweep runs between the statement that finds an old record and the one
// that compares it. On MariaDB the first one locks it.
func testForgottenMeanwhile(t *testing.T, w world) {
	if w.Dialect == driver.MariaDB {
		return
	}
	w.Table.Keep = time.Hour
	w.set(t, "a", 9)
	for _, call := range []call{
		func(ctx context.Context, db driver.SQL) error { return w.Hold(ctx, db, "r", time.Minute, one("a")) },
		func(ctx context.Context, db driver.SQL) error {
			return w.Adjust(ctx, db, stock.Adjustment{Item: "a", Operation: "o", Delta: 1})
		},
	} {
		ok(t, w.in(call))
		w.lapse(t, "r", 2*time.Hour)
		w.lapseOperations(t)
		wantKind(t, w.in(func(ctx context.Context, db driver.SQL) error {
			return call(ctx, &meddled{SQL: db, meddle: func() {
				ok(t, w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.Sweep(ctx, db, 9); return err }))
			}})
		}), interlock.Retryable, nil)
		ok(t, w.in(call))
	}
	w.has(t, "a", 11, 0, 0)
}

// meddled is a transaction that runs a function after its first query.
type meddled struct {
	driver.SQL
	meddle func()
}

func (m *meddled) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	err := m.SQL.Query(ctx, query, args, each)
	if m.meddle != nil {
		m.meddle()
		m.meddle = nil
	}
	return err
}

// TestSurroundings tests other statements of users around the calls.
func TestSurroundings(t *testing.T) {
	t.Parallel()
	eachWorld(t, map[string]func(*testing.T, world){
		"an early snapshot sells nothing twice":   testEarlySnapshot,
		"what expired unseen is no refusal":       testExpiredUnseen,
		"an open transaction is waited for":       testWaits,
		"a hold in the same transaction is known": testSameTransaction,
	})
}

// testEarlySnapshot: transactions read, are overtaken, and then hold the units that they read.
func testEarlySnapshot(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.RepeatableRead, driver.Serializable} {
		item, old := fmt.Sprint("seat", i), fmt.Sprint("old", i)
		w.set(t, item, 1)
		ok(t, w.hold(old, time.Hour, one(item)))
		w.lapse(t, old, 2*time.Hour)
		tx := w.Begun(t, level)
		if w.Dialect == driver.MariaDB && level == driver.Serializable {
			_, err := databases.Value[int64](t.Context(), tx, `select count(*) from interlock_stock_operation`)
			ok(t, err) // any other read would lock its rows
		} else if seen, err := w.Show(t.Context(), tx, item); err != nil || seen.Available() != 1 {
			t.Fatalf("%+v, %v", seen, err)
		}
		ok(t, w.hold(fmt.Sprint("new", i), time.Hour, one(item)))
		err := w.Hold(t.Context(), tx, fmt.Sprint("late", i), time.Hour, one(item))
		if _, found := errors.AsType[*stock.ShortError](err); !found && interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%v: %v (%v)", level, err, interlock.Kind(err))
		}
		ok(t, tx.Rollback(t.Context()))
		w.has(t, item, 1, 1, 0)
	}
}

// testExpiredUnseen: a hold was created and expired after a transaction's snapshot was
// taken. The transaction gets no ShortError: it must run again.
func testExpiredUnseen(t *testing.T, w world) {
	w.set(t, "a", 1)
	tx := w.Begun(t, driver.RepeatableRead)
	if seen, err := w.Show(t.Context(), tx, "a"); err != nil || seen.Available() != 1 {
		t.Fatalf("%+v, %v", seen, err)
	}
	ok(t, w.hold("unseen", time.Hour, one("a")))
	w.lapse(t, "unseen", 2*time.Hour)
	wantKind(t, w.Hold(t.Context(), tx, "late", time.Hour, one("a")), interlock.Retryable, nil)
	ok(t, tx.Rollback(t.Context()))
	ok(t, w.hold("late", time.Hour, one("a")))
}

// testWaits: uncommitted units are neither available nor gone.
func testWaits(t *testing.T, w world) {
	w.set(t, "a", 1)
	for i, end := range []func(driver.Tx[driver.SQL]) error{
		func(tx driver.Tx[driver.SQL]) error { return tx.Rollback(t.Context()) },
		func(tx driver.Tx[driver.SQL]) error { return tx.Commit(t.Context()) },
	} {
		tx := w.Begun(t, driver.SessionIsolation)
		ok(t, w.Hold(t.Context(), tx, fmt.Sprint("first", i), time.Hour, one("a")))
		second := fmt.Sprint("second", i)
		done := make(chan error, 1)
		go func() { done <- w.hold(second, time.Hour, one("a")) }()
		testbed.Eventually(t, "the second waits", bound, func() bool { return w.Waiting(t) == 1 })
		ok(t, end(tx))
		err := <-done
		if i == 0 {
			ok(t, err)
			ok(t, w.cancel(second))
			continue
		}
		wantShort(t, err, "a", 1, 0)
	}
}

func testSameTransaction(t *testing.T, w world) {
	w.set(t, "a", 2)
	ok(t, w.in(func(ctx context.Context, db driver.SQL) error {
		ok(t, w.Hold(ctx, db, "r", time.Hour, one("a")))
		ok(t, w.Hold(ctx, db, "r", time.Hour, one("a")))
		wantReused(t, w.Hold(ctx, db, "r", time.Hour, stock.Line{Item: "a", N: 2}), "r")
		ok(t, w.Confirm(ctx, db, "r"))
		ok(t, w.Hold(ctx, db, "s", time.Hour, one("a")))
		return w.Cancel(ctx, db, "s")
	}))
	w.has(t, "a", 2, 0, 1)
}
