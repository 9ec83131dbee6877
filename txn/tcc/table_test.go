package tcc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/tcc"
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

// testStatements counts the statements of each call.
func testStatements(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	until := time.Now().Add(time.Hour)
	try := func(n int64) func(ctx context.Context, db driver.SQL) error {
		return func(ctx context.Context, db driver.SQL) error {
			return in.Take(ctx, db, tcc.Want{Item: "room", N: n}, until)
		}
	}
	confirm := func(ctx context.Context, db driver.SQL) error { _, _, err := in.Confirm(ctx, db); return err }
	cancel := func(ctx context.Context, db driver.SQL) error { _, _, err := in.Cancel(ctx, db); return err }
	for _, c := range []struct {
		what, id string
		want     int
		call     func(ctx context.Context, db driver.SQL) error
	}{
		{"try", "1", 2, try(1)}, {"try again", "1", 1, try(1)}, {"confirm", "1", 3, confirm}, {"confirm again", "1", 2, confirm},
		{"try another", "2", 2, try(1)}, {"cancel", "2", 2, cancel}, {"cancel again", "2", 1, cancel}, {"cancel nothing", "3", 1, cancel},
		{"try too much", "4", 4, try(100)},
	} {
		counting := &counted{}
		ok(t, in.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
			counting.SQL = db
			err := c.call(call(ctx, c.id, "b", branch.Try), counting)
			if answer(err) == "refused" {
				err = nil
			}
			return err
		}))
		if counting.n != c.want {
			t.Errorf("%s: %d statements, want %d", c.what, counting.n, c.want)
		}
	}
}

// testForget: it removes holds that were settled long ago, and nothing else; a removed one
// cannot be tried again.
func testForget(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	take, until := in.holds().Take(), time.Now().Add(time.Hour)
	for _, id := range []string{"old", "blocked", "held", "young"} {
		if id != "blocked" {
			ok(t, in.do(t.Context(), take, id, branch.Try, tcc.Want{Item: "room", N: 1}, until))
		}
		if id != "held" {
			ok(t, in.do(t.Context(), take, id, branch.Cancel, tcc.Want{}, until))
		}
		if id != "young" {
			in.Exec(t, fmt.Sprintf(`update interlock_tcc_hold set changed_ms = changed_ms - 100000000 where transaction_id = '%s'`, id))
		}
	}
	forget := func(age time.Duration, limit int) (n int, err error) {
		err = in.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
			n, err = in.Forget(ctx, db, age, limit)
			return err
		})
		return n, err
	}
	for _, want := range []int{1, 1, 0} {
		if n, err := forget(24*time.Hour, 1); n != want || err != nil {
			t.Errorf("%d forgotten, %v, want %d", n, err, want)
		}
	}
	if in.state(t, "held", "b") != "held" || in.state(t, "young", "b") != "cancelled" || in.state(t, "old", "b") != "" {
		t.Error("another was forgotten")
	}
	for _, bad := range []func() (int, error){func() (int, error) { return forget(time.Hour, 1) }, func() (int, error) { return forget(24*time.Hour, 0) }} {
		if _, err := bad(); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v", err)
		}
	}
	if got := answer(in.do(t.Context(), take, "old", branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(-time.Second))); got != "refused" {
		t.Errorf("a late try: %s", got)
	}
}

// testConfirmedHook: the user's write commits with the confirmation, once, or neither does.
func testConfirmedHook(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	in.DB.Exec(t, `create table booking (id varchar(100))`)
	fails := errors.New("not yet")
	holds := in.holds()
	holds.Confirmed = func(ctx context.Context, tx driver.SQL, w tcc.Want) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(`insert into booking values ('%s %s %d')`, branch.From(ctx).Transaction, w.Item, w.N))
		return errors.Join(err, fails)
	}
	ok(t, in.do(t.Context(), holds.Take(), "1", branch.Try, tcc.Want{Item: "room", N: 2}, time.Now().Add(time.Hour)))
	if err := in.do(t.Context(), holds.Take(), "1", branch.Confirm, tcc.Want{}, time.Time{}); !errors.Is(err, fails) || in.state(t, "1", "b") != "held" {
		t.Errorf("%v, %s", err, in.state(t, "1", "b"))
	}
	fails = nil
	for range 2 {
		ok(t, in.do(t.Context(), holds.Take(), "1", branch.Confirm, tcc.Want{}, time.Time{}))
	}
	if n := databases.One[int64](t, in.DB, `select count(*) from booking where id = '1 room 2'`); n != 1 {
		t.Errorf("%d bookings", n)
	}
}

// testSet: a capacity cannot be below the held and sold units, nor so high that announced
// ones do not fit.
func testSet(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	until := time.Now().Add(time.Hour)
	ok(t, in.do(t.Context(), in.holds().Take(), "1", branch.Try, tcc.Want{Item: "room", N: 4}, until))
	ok(t, in.do(t.Context(), in.holds().Give(), "2", branch.Try, tcc.Want{Item: "room", N: 2}, until))
	for n, fits := range map[int64]bool{3: false, 4: true, 20: true, driver.MaxQuantity: false, driver.MaxQuantity - 2: true} {
		err := in.Try(t.Context(), func(ctx context.Context, db driver.SQL) error { return in.Set(ctx, db, "room", n) })
		var refused *tcc.RefusedError
		if fits != (err == nil) || !fits && !errors.As(err, &refused) {
			t.Errorf("%d: %v", n, err)
		}
	}
	in.set(t, "room", driver.MaxQuantity-2)
	if got := answer(in.do(t.Context(), in.holds().Give(), "3", branch.Try, tcc.Want{Item: "room", N: 1}, until)); got != "refused" {
		t.Errorf("too much is announced: %s", got)
	}
}

// testNamesAreData, whatever they contain.
func testNamesAreData(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t))
	until := time.Now().Add(time.Hour)
	for _, name := range []string{`it's "\`, "Room", "room", "ro om ", "{items} ? $1", strings.Repeat("ü", driver.MaxTransaction/2)} {
		in.set(t, name, 1)
		for _, id := range []string{name, name + "x"} {
			if len(id) > driver.MaxTransaction {
				continue
			}
			_, err := in.holds().Take().Try(call(t.Context(), id, name, branch.Try), tcc.Want{Item: name, N: 1}, until)
			if want := map[bool]string{true: "done", false: "refused"}[id == name]; answer(err) != want {
				t.Errorf("%q: %s, want %s", id, answer(err), want)
			}
		}
		if l := in.level(t, name); l.Held != 1 {
			t.Errorf("%q: %+v", name, l)
		}
	}
}

// TestMisuse is refused before any request to a database.
func TestMisuse(t *testing.T) {
	until := time.Now().Add(time.Hour)
	in := func(id, name string) context.Context { return call(t.Context(), id, name, branch.Try) }
	var table tcc.Table
	w := tcc.Want{Item: "room", N: 1}
	show := func(db driver.SQL, item string) error { _, err := table.Show(t.Context(), db, item); return err }
	for what, err := range map[string]error{
		"no call":        table.Take(t.Context(), foreign{driver.Postgres}, w, until),
		"no transaction": table.Take(in("", "b"), foreign{driver.Postgres}, w, until),
		"long":           table.Take(in(strings.Repeat("x", 201), "b"), foreign{driver.Postgres}, w, until),
		"no branch":      table.Take(in("1", ""), foreign{driver.Postgres}, w, until),
		"NUL":            table.Take(in("1", "\x00"), foreign{driver.Postgres}, w, until),
		"a step":         table.Take(branch.With(t.Context(), branch.Call{Transaction: "1", Branch: "b", Step: "2"}), foreign{driver.Postgres}, w, until),
		"no item":        table.Give(in("1", "b"), foreign{driver.Postgres}, tcc.Want{N: 1}, until),
		"nothing":        table.Give(in("1", "b"), foreign{driver.Postgres}, tcc.Want{Item: "room"}, until),
		"less":           table.Give(in("1", "b"), foreign{driver.Postgres}, tcc.Want{Item: "room", N: -1}, until),
		"much":           table.Give(in("1", "b"), foreign{driver.Postgres}, tcc.Want{Item: "room", N: driver.MaxQuantity + 1}, until),
		"no database":    table.Take(in("1", "b"), nil, w, until),
		"show nowhere":   show(nil, "room"),
		"create nowhere": table.Create(t.Context(), nil),
		"no holds":       txntest.Second(tcc.Holds[driver.SQL]{}.Sweep(t.Context(), decided, 1)),
		"nobody asked":   txntest.Second(tcc.Holds[driver.SQL]{DB: nowhere{}}.Sweep(t.Context(), nil, 1)),
		"no limit":       txntest.Second(tcc.Holds[driver.SQL]{DB: nowhere{}}.Sweep(t.Context(), decided, 0)),
		"try nowhere":    txntest.Second(tcc.Holds[driver.SQL]{}.Take().Try(in("1", "b"), w, until)),
		"dialect":        table.Take(in("1", "b"), foreign{"oracle"}, w, until),
		"create":         table.Create(t.Context(), foreign{"oracle"}),
		"set below":      table.Set(t.Context(), foreign{driver.Postgres}, "room", -1),
		"set above":      table.Set(t.Context(), foreign{driver.Postgres}, "room", driver.MaxQuantity+1),
		"set nothing":    table.Set(t.Context(), foreign{driver.Postgres}, "", 1),
		"show nothing":   show(foreign{driver.Postgres}, ""),
		"table":          tcc.Table{Name: "a.b.c"}.Take(in("1", "b"), foreign{driver.Postgres}, w, until),
		"long table":     tcc.Table{Name: strings.Repeat("x", 55)}.Create(t.Context(), foreign{driver.Postgres}),
	} {
		if interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func decided(context.Context, string, string) (tcc.Decision, error) { return tcc.Cancel, nil }

// nowhere is a database that receives no request.
type nowhere struct{ driver.BeginnerAt[driver.SQL] }

// foreign is a database that does not exist.
type foreign struct{ dialect driver.Dialect }

func (f foreign) Dialect() driver.Dialect { return f.dialect }

func (foreign) Exec(context.Context, string, ...any) (int64, error) { panic("the database is asked") }

func (foreign) Query(context.Context, string, []any, func(func(...any) error) error) error {
	panic("the database is asked")
}
