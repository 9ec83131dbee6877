package stock_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

func TestTable(t *testing.T) {
	t.Parallel()
	eachWorld(t, map[string]func(*testing.T, world){
		"several items are held together or not at all":   testAllOrNothing,
		"repeating converges":                             testRepeating,
		"an id is of one reservation only":                testReused,
		"what expired is available without a sweeper":     testExpired,
		"no more is given away than needed":               testGivenAwayAsNeeded,
		"a late confirmation works until units are taken": testLateConfirm,
		"what is settled stays so":                        testSettled,
		"a difference is applied once":                    testAdjust,
		"a difference takes what expired":                 testAdjustTakesExpired,
		"a supply is set and not below what is taken":     testSet,
		"the database refuses to oversell":                testNet,
		"a reservation that is swept is whole":            testSweep,
		"names are data":                                  testNames,
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

func testRepeating(t *testing.T, w world) {
	w.set(t, "a", 9)
	w.set(t, "b", 9)
	for range 3 {
		ok(t, w.hold("r", time.Hour, one("a"), one("b")))
		ok(t, w.hold("r", time.Hour, one("b"), one("a")))
		w.has(t, "a", 9, 1, 0)
	}
	for range 3 {
		ok(t, w.confirm("r"))
		ok(t, w.hold("r", time.Hour, one("a"), one("b")))
		w.has(t, "b", 9, 0, 1)
	}
	ok(t, w.hold("s", time.Hour, one("a")))
	for range 3 {
		ok(t, w.cancel("s"))
		w.has(t, "a", 9, 0, 1)
	}
	wantSettled(t, w.hold("s", time.Hour, one("a")), "s", driver.StockCancelled)
	w.has(t, "a", 9, 0, 1)
}

func testReused(t *testing.T, w world) {
	for _, item := range []string{"a", "b", "c"} {
		w.set(t, item, 9)
	}
	ok(t, w.hold("r", time.Hour, one("a"), one("b")))
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

func testExpired(t *testing.T, w world) {
	w.set(t, "12A", 1)
	ok(t, w.hold("slow", time.Hour, one("12A")))
	w.lapse(t, "slow", 2*time.Hour)
	w.has(t, "12A", 1, 0, 0)
	wantSettled(t, w.hold("slow", time.Hour, one("12A")), "slow", driver.StockExpired)
	var given []observe.StockGivenAway
	w.Table.Observe.GivenAway = func(e observe.StockGivenAway) { given = append(given, e) }
	ok(t, w.hold("quick", time.Hour, one("12A")))
	if want := []observe.StockGivenAway{{Item: "12A", Reservation: "slow", N: 1}}; !slices.Equal(given, want) {
		t.Errorf("received %v", given)
	}
	w.has(t, "12A", 1, 1, 0)
	for range 2 {
		wantSettled(t, w.confirm("slow"), "slow", driver.StockExpired)
		ok(t, w.cancel("slow"))
		w.has(t, "12A", 1, 1, 0)
	}
	wantSettled(t, w.hold("slow", time.Hour, one("12A")), "slow", driver.StockExpired)
	ok(t, w.confirm("quick"))
	w.has(t, "12A", 1, 0, 1)
}

func testGivenAwayAsNeeded(t *testing.T, w world) {
	w.set(t, "a", 10)
	for i, n := range []int64{3, 3, 3} {
		id := fmt.Sprint("r", i)
		ok(t, w.hold(id, time.Hour, stock.Line{Item: "a", N: n}))
		w.lapse(t, id, time.Hour*time.Duration(9-i))
	}
	w.has(t, "a", 10, 0, 0)
	wantShort(t, w.hold("all", time.Hour, stock.Line{Item: "a", N: 11}), "a", 11, 10)
	ok(t, w.hold("new", time.Hour, stock.Line{Item: "a", N: 5})) // 1 was free, and 4 are from the first two
	wantSettled(t, w.confirm("r0"), "r0", driver.StockExpired)
	wantSettled(t, w.confirm("r1"), "r1", driver.StockExpired)
	ok(t, w.confirm("r2"))
	w.has(t, "a", 10, 5, 3)
}

// testLateConfirm also confirms a reservation that lost only one of its items.
func testLateConfirm(t *testing.T, w world) {
	w.set(t, "a", 1)
	w.set(t, "b", 1)
	w.set(t, "c", 1)
	ok(t, w.hold("late", time.Hour, one("a")))
	w.lapse(t, "late", 2*time.Hour)
	ok(t, w.confirm("late"))
	w.has(t, "a", 1, 0, 1)

	ok(t, w.hold("torn", time.Hour, one("b"), one("c")))
	w.lapse(t, "torn", 2*time.Hour)
	ok(t, w.hold("other", time.Hour, one("c")))
	wantSettled(t, w.confirm("torn"), "torn", driver.StockExpired)
	w.has(t, "b", 1, 0, 0)
	ok(t, w.cancel("torn"))
	ok(t, w.hold("third", time.Hour, one("b")))
	w.has(t, "b", 1, 1, 0)
	w.has(t, "c", 1, 1, 0)
}

func testSettled(t *testing.T, w world) {
	w.set(t, "a", 5)
	ok(t, w.hold("c", time.Hour, one("a")))
	ok(t, w.confirm("c"))
	wantSettled(t, w.cancel("c"), "c", driver.StockConfirmed)
	ok(t, w.hold("x", time.Hour, one("a")))
	ok(t, w.cancel("x"))
	wantSettled(t, w.confirm("x"), "x", driver.StockCancelled)
	w.has(t, "a", 5, 0, 1)
	w.lapse(t, "c", 2*time.Hour) // a confirmed reservation does not expire
	wantShort(t, w.hold("y", time.Hour, stock.Line{Item: "a", N: 5}), "a", 5, 4)
	ok(t, w.confirm("c"))
}

func testAdjust(t *testing.T, w world) {
	w.set(t, "balance", 97)
	for range 3 { // all of them would fit
		ok(t, w.adjust(stock.Adjustment{Item: "balance", Operation: "less", Delta: -2}))
		ok(t, w.adjust(stock.Adjustment{Item: "balance", Operation: "more", Delta: 5}))
	}
	take := stock.Adjustment{Item: "balance", Operation: "op1", Delta: -70}
	for range 3 {
		ok(t, w.adjust(take))
	}
	w.has(t, "balance", 30, 0, 0)
	again := take
	again.Delta = -71
	wantReused(t, w.adjust(again), "op1")
	again.Operation = "op2"
	for range 2 { // a refused operation is not recorded
		wantShort(t, w.adjust(again), "balance", 71, 30)
	}
	again.Delta, again.Floor = -30, 1
	wantShort(t, w.adjust(again), "balance", 31, 30)
	again.Floor = 0
	ok(t, w.adjust(again))
	w.has(t, "balance", 0, 0, 0)
	ok(t, w.adjust(stock.Adjustment{Item: "balance", Operation: "op3", Delta: driver.MaxQuantity}))
	wantKind(t, w.adjust(stock.Adjustment{Item: "balance", Operation: "op4", Delta: 1}), interlock.Definite, nil)
	wantUnknown(t, w.adjust(stock.Adjustment{Item: "other", Operation: "op1", Delta: 1}), "other", "")
	w.has(t, "balance", driver.MaxQuantity, 0, 0)
	if n := databases.One[int64](t, w.DB, `select count(*) from interlock_stock_operation`); n != 5 {
		t.Errorf("%d operations are recorded", n)
	}
}

func testAdjustTakesExpired(t *testing.T, w world) {
	w.set(t, "a", 10)
	ok(t, w.hold("r", time.Hour, stock.Line{Item: "a", N: 8}))
	wantShort(t, w.adjust(stock.Adjustment{Item: "a", Operation: "broken", Delta: -5}), "a", 5, 2)
	w.lapse(t, "r", 2*time.Hour)
	ok(t, w.adjust(stock.Adjustment{Item: "a", Operation: "broken", Delta: -5}))
	w.has(t, "a", 5, 0, 0)
	wantSettled(t, w.confirm("r"), "r", driver.StockExpired)
}

func testSet(t *testing.T, w world) {
	w.set(t, "a", 10)
	w.set(t, "a", 8)
	ok(t, w.hold("r", time.Hour, stock.Line{Item: "a", N: 4}))
	ok(t, w.hold("s", time.Hour, stock.Line{Item: "a", N: 2}))
	ok(t, w.confirm("s"))
	set := func(n int64) error {
		return w.in(func(ctx context.Context, sql driver.SQL) error { return w.Set(ctx, sql, "a", n) })
	}
	ok(t, set(6))
	wantShort(t, set(5), "a", 1, 0)
	w.has(t, "a", 6, 4, 2)
	w.lapse(t, "r", 2*time.Hour)
	ok(t, set(2))
	w.has(t, "a", 2, 0, 2)
	wantShort(t, set(0), "a", 2, 0)
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

func testNames(t *testing.T, w world) {
	odd := []string{`it's "\`, "{items}?", "$1", "A", "a", "a ", "ключ", strings.Repeat("x", driver.MaxName)}
	for _, name := range odd {
		w.set(t, name, 1)
		ok(t, w.hold(name, time.Hour, one(name)))
		ok(t, w.adjust(stock.Adjustment{Item: name, Operation: name, Delta: 1}))
	}
	for _, name := range odd {
		w.has(t, name, 2, 1, 0)
		ok(t, w.confirm(name))
	}
	for _, bad := range []string{"", strings.Repeat("x", driver.MaxName+1), "\xff", "a\x00b"} {
		for _, err := range []error{
			w.hold(bad, time.Hour, one("a")), w.hold("r", time.Hour, one(bad)), w.confirm(bad), w.cancel(bad),
			w.adjust(stock.Adjustment{Item: bad, Operation: "o", Delta: 1}),
			w.adjust(stock.Adjustment{Item: "a", Operation: bad, Delta: 1}),
			w.in(func(ctx context.Context, sql driver.SQL) error { return w.Set(ctx, sql, bad, 1) }),
			w.in(func(ctx context.Context, sql driver.SQL) error { _, err := w.Show(ctx, sql, bad); return err }),
		} {
			wantKind(t, err, interlock.Bug, interlock.ErrName)
		}
	}
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

// counted counts statements.
type counted struct {
	driver.SQL
	n int
}

func (c *counted) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	c.n++
	return c.SQL.Exec(ctx, query, args...)
}

func (c *counted) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	c.n++
	return c.SQL.Query(ctx, query, args, each)
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
			postgres, mariadb int
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
			var n int
			ok(t, w.in(func(ctx context.Context, db driver.SQL) error {
				counting := &counted{SQL: db}
				err := c.call(ctx, counting)
				n = counting.n
				return err
			}))
			if want := map[driver.Dialect]int{driver.Postgres: c.postgres, driver.MariaDB: c.mariadb}[w.Dialect]; n != want {
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
