package stock_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestTableSuite runs the suite of driver.Stock on tables. It allows no Retryable error: calls of
// one item cause no deadlock.
func TestTableSuite(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		drivertest.RunStock(t, drivertest.StockHarness{
			Start: func(t *testing.T, _ bool) drivertest.StockBackend {
				return inTable{newWorld(t, open(t)), make(chan struct{}, atOnce)}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		})
	})
}

// inTable is a driver.Stock that makes each call in its own transaction. A reservation has one line.
type inTable struct {
	world
	running chan struct{} // as many transactions at once as it has room for
}

func (s inTable) Open(*testing.T) (driver.Stock, error) { return s, nil }
func (inTable) Faults() drivertest.Faults               { return nil }

// Beside is where the suite looks at the result.
func (s inTable) Beside(t *testing.T) (driver.Stock, error) {
	s.sound(t)
	return s, nil
}

func (s inTable) Supply(ctx context.Context, item string, n int64) (driver.StockAnswer, error) {
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error { return s.Set(ctx, db, item, n) })
}

func (s inTable) Adjust(ctx context.Context, a driver.StockAdjustment) (driver.StockAnswer, error) {
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error { return s.Table.Adjust(ctx, db, a) })
}

func (s inTable) Hold(ctx context.Context, h driver.StockHold) (driver.StockAnswer, error) {
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error {
		return s.Table.Hold(ctx, db, idOf(h.Item, h.Reservation), h.TTL, stock.Line{Item: h.Item, N: h.N})
	})
}

func (s inTable) Settle(ctx context.Context, item, reservation string, to driver.StockState) (driver.StockAnswer, error) {
	id := idOf(item, reservation)
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error {
		switch to {
		case driver.StockConfirmed:
			return s.Confirm(ctx, db, id)
		case driver.StockCancelled:
			return s.Cancel(ctx, db, id)
		}
		return &interlock.Error{Op: "settle", Kind: interlock.Bug, Err: fmt.Errorf("to %q", to)}
	})
}

func (s inTable) Level(ctx context.Context, item string) (level driver.StockLevel, err error) {
	err = s.Try(ctx, func(ctx context.Context, db driver.SQL) error {
		level, err = s.Show(ctx, db, item)
		return err
	})
	return level, err
}

// idOf returns the id of a reservation of an item: those of a table are shared by all items. It is
// empty if either name is invalid.
func idOf(item, reservation string) string {
	for _, name := range []string{item, reservation} {
		if driver.CheckName("", "", name, driver.MaxName) != nil {
			return ""
		}
	}
	if id := item + "/" + reservation; len(id) <= driver.MaxName {
		return id
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(item+"/"+reservation)))
}

// call returns the outcome of a transaction.
func (s inTable) call(ctx context.Context, fn call) (driver.StockAnswer, error) {
	s.running <- struct{}{}
	err := s.Try(ctx, fn)
	<-s.running
	var short *stock.ShortError
	var reused *stock.ReusedError
	var settled *stock.SettledError
	var unknown *stock.UnknownError
	switch {
	case err == nil:
		return driver.StockAnswer{Outcome: driver.StockDone}, nil
	case errors.As(err, &short):
		return driver.StockAnswer{Outcome: driver.StockShort, Want: short.Want, Available: short.Available}, nil
	case errors.As(err, &reused):
		return driver.StockAnswer{Outcome: driver.StockOther}, nil
	case errors.As(err, &settled) && settled.State == driver.StockExpired:
		return driver.StockAnswer{Outcome: driver.StockGone, State: settled.State}, nil
	case settled != nil:
		return driver.StockAnswer{Outcome: driver.StockSettled, State: settled.State}, nil
	case errors.As(err, &unknown):
		return driver.StockAnswer{Outcome: driver.StockUnknown}, nil
	case strings.Contains(err.Error(), "the supply would exceed"):
		return driver.StockAnswer{Outcome: driver.StockFull}, nil
	}
	return driver.StockAnswer{}, err
}

func TestTable(t *testing.T) {
	t.Parallel()
	eachWorld(t, map[string]func(*testing.T, world){
		"several items are held together or not at all":   testAllOrNothing,
		"an id is of one reservation only":                testReused,
		"a late confirmation works until units are taken": testLateConfirm,
		"the database refuses to oversell":                testNet,
		"a reservation that is swept is whole":            testSweep,
		"a hold never expires into itself":                testShortestHold,
		"what is refused changes nothing":                 testRefusedInTheSameTransaction,
	})
}

func testAllOrNothing(t *testing.T, w world) {
	w.set(t, "a", 5)
	w.set(t, "b", 2)
	w.set(t, "c", 5)
	ok(t, w.hold("first", time.Hour, one("c"), stock.Line{Item: "a", N: 3}, one("b")))
	wantShort(t, w.hold("second", time.Hour, one("c"), stock.Line{Item: "b", N: 2}, one("a")), "b", 2, 1)
	wantUnknown(t, w.hold("second", time.Hour, one("a"), one("d")), "d", "")
	w.has(t, "a", 5, 3, 0)
	w.has(t, "b", 2, 1, 0)
	w.has(t, "c", 5, 1, 0)
	ok(t, w.hold("second", time.Hour, one("c"), one("a"))) // a refused id was not used
	ok(t, w.confirm("first"))
	ok(t, w.cancel("second"))
	w.has(t, "a", 5, 0, 3)
	w.has(t, "b", 2, 0, 1)
	w.has(t, "c", 5, 0, 1)
	wantUnknown(t, w.confirm("third"), "", "third")
	ok(t, w.cancel("third"))
	w.has(t, "d", 0, 0, 0)
}

func testReused(t *testing.T, w world) {
	for _, item := range []string{"a", "b", "c"} {
		w.set(t, item, 9)
	}
	ok(t, w.hold("r", time.Hour, one("a"), one("b")))
	ok(t, w.hold("r", time.Hour, one("b"), one("a")))
	for _, other := range [][]stock.Line{
		{one("a")}, {one("b")}, {one("c")}, {one("a"), one("c")}, {one("a"), one("b"), one("c")},
		{one("a"), {Item: "b", N: 2}}, {{Item: "a", N: 10}},
	} {
		wantReused(t, w.hold("r", time.Hour, other...), "r")
	}
	w.has(t, "a", 9, 1, 0)
	w.has(t, "b", 9, 1, 0)
	w.has(t, "c", 9, 0, 0)
	ok(t, w.cancel("r"))
	wantReused(t, w.hold("r", time.Hour, one("a")), "r")
}

// testLateConfirm confirms a reservation that lost only one of its items.
func testLateConfirm(t *testing.T, w world) {
	w.set(t, "b", 1)
	w.set(t, "c", 1)
	ok(t, w.hold("torn", time.Hour, one("b"), one("c")))
	w.lapse(t, "torn", 2*time.Hour)
	var given []observe.StockGivenAway
	w.Table.Observe.GivenAway = func(e observe.StockGivenAway) { given = append(given, e) }
	ok(t, w.hold("other", time.Hour, one("c")))
	if want := []observe.StockGivenAway{{Item: "c", Reservation: "torn", N: 1}}; !slices.Equal(given, want) {
		t.Errorf("received %v", given)
	}
	wantSettled(t, w.confirm("torn"), "torn", driver.StockExpired)
	w.has(t, "b", 1, 0, 0)
	ok(t, w.cancel("torn"))
	ok(t, w.hold("third", time.Hour, one("b")))
	w.has(t, "b", 1, 1, 0)
	w.has(t, "c", 1, 1, 0)
}

// testNet writes without the package.
func testNet(t *testing.T, w world) {
	w.set(t, "a", 2)
	for _, query := range []string{
		`update interlock_stock set held = 3`,
		`update interlock_stock set held = 1, sold = 2`,
		`update interlock_stock set held = -1`,
		`update interlock_stock set supply = -1`,
	} {
		wantKind(t, w.in(func(ctx context.Context, sql driver.SQL) error {
			_, err := sql.Exec(ctx, query)
			return err
		}), interlock.Definite, nil)
	}
	w.has(t, "a", 2, 0, 0)
}

func testSweep(t *testing.T, w world) {
	w.Table.Keep = time.Hour
	w.set(t, "a", 100)
	w.set(t, "b", 100)
	sweep := func(limit int) (n int) {
		t.Helper()
		ok(t, w.in(func(ctx context.Context, sql driver.SQL) (err error) {
			n, err = w.Sweep(ctx, sql, limit)
			return err
		}))
		return n
	}
	for i := range 12 {
		id := fmt.Sprint("r", i)
		ok(t, w.hold(id, time.Minute, one("a"), one("b")))
		switch i % 4 {
		case 1:
			ok(t, w.confirm(id))
		case 2:
			ok(t, w.cancel(id))
		}
		ok(t, w.adjust(stock.Adjustment{Item: "a", Operation: id, Delta: 1}))
	}
	for _, w.Table.Keep = range []time.Duration{math.MaxInt64, time.Hour} {
		if n := sweep(stock.MaxSweep); n != 0 {
			t.Errorf("%d were forgotten too early, to be kept for %v", n, w.Table.Keep)
		}
	}
	for i := range 12 {
		if i%4 != 3 {
			w.lapse(t, fmt.Sprint("r", i), 2*time.Hour)
		}
	}
	for _, want := range []int{5, 4, 0} {
		if n := sweep(5); n != want {
			t.Errorf("%d were forgotten, want %d", n, want)
		}
	}
	w.lapseOperations(t)
	for _, want := range []int{10, 2, 0} {
		if n := sweep(10); n != want {
			t.Errorf("%d were forgotten, want %d", n, want)
		}
	}
	if got := w.level(t, "b"); got != (driver.StockLevel{Supply: 100, Held: 3, Sold: 3}) {
		t.Errorf("after the sweep: %+v", got)
	}
	wantUnknown(t, w.confirm("r1"), "", "r1")
	ok(t, w.confirm("r3"))
}

// testShortestHold: holds expire before they are read.
func testShortestHold(t *testing.T, w world) {
	w.set(t, "a", 1)
	w.set(t, "b", 1)
	for i := range 20 {
		ok(t, w.hold(fmt.Sprint(i), time.Millisecond, one("a"), one("b")))
		w.sound(t)
		w.lapse(t, fmt.Sprint(i), time.Second)
	}
	w.has(t, "a", 1, 0, 0)
}

func testRefusedInTheSameTransaction(t *testing.T, w world) {
	for _, item := range []string{"a", "b", "c"} {
		w.set(t, item, 5)
	}
	ok(t, w.hold("old", time.Hour, stock.Line{Item: "a", N: 5}))
	w.lapse(t, "old", 2*time.Hour)
	ok(t, w.in(func(ctx context.Context, sql driver.SQL) error {
		wantShort(t, w.Hold(ctx, sql, "r", time.Hour, one("a"), stock.Line{Item: "b", N: 6}), "b", 6, 5)
		wantShort(t, w.Hold(ctx, sql, "r", time.Hour, one("b"), stock.Line{Item: "c", N: 6}), "c", 6, 5)
		wantShort(t, w.Adjust(ctx, sql, stock.Adjustment{Item: "b", Operation: "o", Delta: -6}), "b", 6, 5)
		return w.Hold(ctx, sql, "r", time.Hour, one("c"))
	}))
	w.has(t, "b", 5, 0, 0)
	w.has(t, "c", 5, 1, 0)
	ok(t, w.confirm("old")) // the refused call took none of its units
	w.has(t, "a", 5, 0, 5)
}

// TestStatements counts the statements of each call without conflicts. A seat is booked
// by one statement on PostgreSQL, and by one more on MariaDB, where the last statement
// locks the contended row.
func TestStatements(t *testing.T) {
	t.Parallel()
	three := []stock.Line{one("a"), one("b"), one("c")}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t))
		for _, item := range []string{"a", "b", "c"} {
			w.set(t, item, 10)
		}
		for _, c := range []struct {
			what              string
			postgres, mariadb int64
			call              func(ctx context.Context, db driver.SQL) error
		}{
			{"hold", 1, 2, func(ctx context.Context, db driver.SQL) error { return w.Hold(ctx, db, "r", time.Hour, one("a")) }},
			{"hold again", 2, 2, func(ctx context.Context, db driver.SQL) error { return w.Hold(ctx, db, "r", time.Hour, one("a")) }},
			{"hold three", 1, 6, func(ctx context.Context, db driver.SQL) error { return w.Hold(ctx, db, "s", time.Hour, three...) }},
			{"confirm", 3, 3, func(ctx context.Context, db driver.SQL) error { return w.Confirm(ctx, db, "r") }},
			{"confirm again", 1, 1, func(ctx context.Context, db driver.SQL) error { return w.Confirm(ctx, db, "r") }},
			{"cancel three", 7, 7, func(ctx context.Context, db driver.SQL) error { return w.Cancel(ctx, db, "s") }},
			{"adjust", 1, 2, func(ctx context.Context, db driver.SQL) error {
				return w.Adjust(ctx, db, stock.Adjustment{Item: "a", Operation: "o", Delta: -1})
			}},
			{"set", 1, 1, func(ctx context.Context, db driver.SQL) error { return w.Set(ctx, db, "a", 9) }},
			{"show", 1, 1, func(ctx context.Context, db driver.SQL) error { _, err := w.Show(ctx, db, "a"); return err }},
			{"sweep nothing", 2, 2, func(ctx context.Context, db driver.SQL) error { _, err := w.Sweep(ctx, db, 10); return err }},
		} {
			var count databases.Counted
			ok(t, w.in(func(ctx context.Context, db driver.SQL) error { return c.call(ctx, count.SQL(db)) }))
			want := map[driver.Dialect]int64{driver.Postgres: c.postgres, driver.MariaDB: c.mariadb}[w.Dialect]
			if n := count.Statements.Load(); n != want {
				t.Errorf("%s: %d statements, want %d", c.what, n, want)
			}
		}
	}, databases.Pgx, databases.Maria)
}

// TestMisuse is refused before any request to a database.
func TestMisuse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var table stock.Table
	lines := make([]stock.Line, stock.MaxLines+1)
	for i := range lines {
		lines[i] = one(strings.Repeat("x", i+1))
	}
	_, swept := table.Sweep(ctx, foreign{}, 0)
	_, sweptMore := table.Sweep(ctx, foreign{}, stock.MaxSweep+1)
	_, shown := table.Show(ctx, foreign{}, "a")
	for what, err := range map[string]error{
		"no lines":      table.Hold(ctx, foreign{}, "r", time.Hour),
		"too many":      table.Hold(ctx, foreign{}, "r", time.Hour, lines...),
		"twice":         table.Hold(ctx, foreign{}, "r", time.Hour, one("a"), one("b"), one("a")),
		"no units":      table.Hold(ctx, foreign{}, "r", time.Hour, stock.Line{Item: "a"}),
		"many units":    table.Hold(ctx, foreign{}, "r", time.Hour, stock.Line{Item: "a", N: driver.MaxQuantity + 1}),
		"no time":       table.Hold(ctx, foreign{}, "r", 0, one("a")),
		"little time":   table.Hold(ctx, foreign{}, "r", time.Microsecond, one("a")),
		"no difference": table.Adjust(ctx, foreign{}, stock.Adjustment{Item: "a", Operation: "o"}),
		"below nothing": table.Set(ctx, foreign{}, "a", -1),
		"too much":      table.Set(ctx, foreign{}, "a", driver.MaxQuantity+1),
		"sweep nothing": swept,
		"sweep all":     sweptMore,
		"dialect":       table.Confirm(ctx, foreign{}, "r"),
		"dialect, show": shown,
		"table":         stock.Table{Name: "a.b.c"}.Cancel(ctx, foreign{driver.Postgres}, "r"),
		"long table":    stock.Table{Name: strings.Repeat("x", 52)}.Cancel(ctx, foreign{driver.Postgres}, "r"),
	} {
		if interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// foreign is a database that does not exist.
type foreign struct{ dialect driver.Dialect }

func (f foreign) Dialect() driver.Dialect { return f.dialect }

func (foreign) Exec(context.Context, string, ...any) (int64, error) { panic("the database is asked") }

func (foreign) Query(context.Context, string, []any, func(func(...any) error) error) error {
	panic("the database is asked")
}
