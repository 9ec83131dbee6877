package stock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

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
