package stock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 30 * time.Second

// world is one database with the tables of the stock.
type world struct {
	*databases.DB
	stock.Table
}

func newWorld(tb testing.TB, db *databases.DB) world {
	tb.Helper()
	w := world{DB: db}
	w.DB.Do(tb, func(ctx context.Context, sql driver.SQL) error { return w.Create(ctx, sql) })
	return w
}

// eachWorld runs tests on each database by each client.
func eachWorld(t *testing.T, tests map[string]func(*testing.T, world), clients ...string) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, newWorld(t, open(t)))
			})
		}
	}, clients...)
}

// in runs fn in its own transaction.
func (w world) in(fn func(ctx context.Context, sql driver.SQL) error) error {
	return w.Try(context.Background(), fn)
}

func (w world) set(t testing.TB, item string, n int64) {
	t.Helper()
	ok(t, w.in(func(ctx context.Context, sql driver.SQL) error { return w.Set(ctx, sql, item, n) }))
}

func (w world) hold(id string, ttl time.Duration, lines ...stock.Line) error {
	return w.in(func(ctx context.Context, sql driver.SQL) error { return w.Hold(ctx, sql, id, ttl, lines...) })
}

func (w world) confirm(id string) error {
	return w.in(func(ctx context.Context, sql driver.SQL) error { return w.Confirm(ctx, sql, id) })
}

func (w world) cancel(id string) error {
	return w.in(func(ctx context.Context, sql driver.SQL) error { return w.Cancel(ctx, sql, id) })
}

func (w world) adjust(a stock.Adjustment) error {
	return w.in(func(ctx context.Context, sql driver.SQL) error { return w.Adjust(ctx, sql, a) })
}

func (w world) level(t testing.TB, item string) (level driver.StockLevel) {
	t.Helper()
	ok(t, w.in(func(ctx context.Context, sql driver.SQL) (err error) {
		level, err = w.Show(ctx, sql, item)
		return err
	}))
	return level
}

// has requires the shown state of an item.
func (w world) has(t testing.TB, item string, supply, held, sold int64) {
	t.Helper()
	if got, want := w.level(t, item), (driver.StockLevel{Supply: supply, Held: held, Sold: sold}); got != want {
		t.Errorf("%s is %+v, want %+v", item, got, want)
	}
	w.sound(t)
}

// sound requires that the items agree with the reservations.
func (w world) sound(t testing.TB) {
	t.Helper()
	const query = `select count(*) from interlock_stock i where held + sold > supply
		or held <> (select coalesce(sum(n), 0) from interlock_stock_reservation r where r.item = i.item and r.state = 'held')
		or sold <> (select coalesce(sum(n), 0) from interlock_stock_reservation r where r.item = i.item and r.state = 'confirmed')`
	if n := databases.One[int64](t, w.DB, query); n != 0 {
		t.Errorf("%d items say something else than their reservations", n)
	}
}

// lapse makes the hold of a reservation expire, by the database's clock.
func (w world) lapse(t testing.TB, id string, ago time.Duration) {
	t.Helper()
	w.Exec(t, `update interlock_stock_reservation set expires_at = expires_at - `+w.interval(ago)+` where reservation = '`+id+`'`)
}

// lapseOperations makes all operations old.
func (w world) lapseOperations(t testing.TB) {
	t.Helper()
	w.Exec(t, `update interlock_stock_operation set done_at = done_at - `+w.interval(2*time.Hour))
}

// interval returns whole seconds in SQL.
func (w world) interval(d time.Duration) string {
	if w.Dialect == driver.MariaDB {
		return fmt.Sprintf("interval %d second", int(d.Seconds()))
	}
	return fmt.Sprintf("interval '%d seconds'", int(d.Seconds()))
}

func one(item string) stock.Line { return stock.Line{Item: item, N: 1} }

var ok, wantKind = testbed.OK, testbed.WantKind

// wants requires an error of a type, with these contents, that is Definite.
func wants[E interface {
	comparable
	error
}](t testing.TB, err error, as *E, same func(E) bool) {
	t.Helper()
	if !errors.As(err, as) || !same(*as) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("%v (%v), want a %T", err, interlock.Kind(err), *as)
	}
}

func wantShort(t testing.TB, err error, item string, want, available int64) {
	t.Helper()
	var e *stock.ShortError
	wants(t, err, &e, func(e *stock.ShortError) bool {
		return *e == stock.ShortError{Item: item, Want: want, Available: available}
	})
}

func wantSettled(t testing.TB, err error, id string, state driver.StockState) {
	t.Helper()
	var e *stock.SettledError
	wants(t, err, &e, func(e *stock.SettledError) bool { return *e == stock.SettledError{Reservation: id, State: state} })
}

func wantReused(t testing.TB, err error, id string) {
	t.Helper()
	var e *stock.ReusedError
	wants(t, err, &e, func(e *stock.ReusedError) bool { return e.ID == id })
}

func wantUnknown(t testing.TB, err error, item, id string) {
	t.Helper()
	var e *stock.UnknownError
	wants(t, err, &e, func(e *stock.UnknownError) bool { return *e == stock.UnknownError{Item: item, Reservation: id} })
}
