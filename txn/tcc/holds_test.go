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
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

var ok = testbed.OK

// inn is a table of holds in the test's own database.
type inn struct {
	*databases.DB
	tcc.Table
}

func open(t testing.TB, db *databases.DB, items ...string) inn {
	t.Helper()
	in := inn{DB: db}
	db.Do(t, in.Create)
	for _, item := range items {
		in.set(t, item, 10)
	}
	return in
}

func (in inn) set(t testing.TB, item string, n int64) {
	t.Helper()
	in.Do(t, func(ctx context.Context, db driver.SQL) error { return in.Set(ctx, db, item, n) })
}

func (in inn) level(t testing.TB, item string) (l tcc.Level) {
	t.Helper()
	in.Do(t, func(ctx context.Context, db driver.SQL) (err error) {
		l, err = in.Show(ctx, db, item)
		return err
	})
	return l
}

// state returns the state of a hold in its row.
func (in inn) state(t testing.TB, id, name string) string {
	t.Helper()
	return databases.One[string](t, in.DB, fmt.Sprintf(`select state from interlock_tcc_hold where transaction_id = '%s' and branch = '%s'`, id, name))
}

// trials are tests with their own databases on shared servers.
type trials []struct {
	name string
	test func(t *testing.T, openDB func(testing.TB) *databases.DB)
}

func (all trials) run(t *testing.T, clients ...string) {
	t.Helper()
	databases.Each(t, func(t *testing.T, openDB func(testing.TB) *databases.DB) {
		for _, tt := range all {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, openDB)
			})
		}
	}, clients...)
}

// TestHolds runs with each client, on each database.
func TestHolds(t *testing.T) {
	trials{
		{"every permutation has its answers", testEveryPermutation},
		{"refusals are remembered", testRefusalsAreRemembered},
		{"never more is held than there is", testNeverMoreThanThereIs},
		{"what is past its time is asked about", testSweep},
		{"what was settled long ago is forgotten", testForget},
		{"a booking stands with its confirmation", testConfirmedHook},
		{"a capacity is not set too low", testSet},
		{"names are data", testNamesAreData},
	}.run(t)
}

// TestHoldsOfEach runs with one client of each database.
func TestHoldsOfEach(t *testing.T) {
	trials{
		{"another request is refused", testOtherRequest},
		{"a confirmation against a cancellation", testConfirmAgainstCancel},
		{"a sweep stops where nobody answers", testSweepStops},
		{"a sweep goes on past who never answers", testSweepGoesOn},
		{"to forget waits for nobody", testForgetWaitsForNobody},
		{"sweeps read what is due", testReads},
		{"statements are counted", testStatements},
		{"a process that is stopped keeps no locks", testStopped},
	}.run(t, databases.Pgx, databases.Maria)
}

// call returns the context of a call.
func call(ctx context.Context, id, name string, op branch.Operation) context.Context {
	return branch.With(ctx, branch.Call{Transaction: id, Branch: name, Operation: op})
}

func (in inn) holds() tcc.Holds[driver.SQL] { return tcc.Holds[driver.SQL]{DB: in.DB, Table: in.Table} }

// do makes a call.
func (in inn) do(ctx context.Context, of tcc.Resource[tcc.Want, tcc.Want], id string, op branch.Operation, w tcc.Want, until time.Time) error {
	ctx = call(ctx, id, "b", op)
	switch op {
	case branch.Try:
		_, err := of.Try(ctx, w, until)
		return err
	case branch.Confirm:
		return of.Confirm(ctx, w, w)
	}
	return of.Cancel(ctx, w, nil)
}

// expected has the answer and the next state for each state of a branch and each call. It
// is written by hand, from the rules of a barrier. The empty state means that there is no
// row.
var expected = map[string]map[branch.Operation][2]string{
	"":          {branch.Try: {"done", "held"}, branch.Confirm: {"violation", ""}, branch.Cancel: {"done", "blocked"}},
	"held":      {branch.Try: {"done", "held"}, branch.Confirm: {"done", "confirmed"}, branch.Cancel: {"done", "cancelled"}},
	"confirmed": {branch.Try: {"done", "confirmed"}, branch.Confirm: {"done", "confirmed"}, branch.Cancel: {"violation", "confirmed"}},
	"cancelled": {branch.Try: {"cancelled", "cancelled"}, branch.Confirm: {"violation", "cancelled"}, branch.Cancel: {"done", "cancelled"}},
	"blocked":   {branch.Try: {"cancelled", "blocked"}, branch.Confirm: {"violation", "blocked"}, branch.Cancel: {"done", "blocked"}},
}

// answer returns an error in one word.
func answer(err error) string {
	var v *tcc.ViolationError
	var r *tcc.RefusedError
	class, _ := branch.ClassOf(err)
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &v) && class == branch.ClassFail:
		return "violation"
	case errors.As(err, &r) && class == branch.ClassFail:
		return "refused"
	case errors.Is(err, tcc.ErrCancelled) && class == branch.ClassFail:
		return "cancelled"
	}
	return err.Error()
}

// permutations returns the different sequences of one to five of these calls.
func permutations() (all [][]branch.Operation) {
	var grow func(so []branch.Operation, left map[branch.Operation]int)
	grow = func(so []branch.Operation, left map[branch.Operation]int) {
		if len(so) > 0 {
			all = append(all, so)
		}
		for _, op := range []branch.Operation{branch.Try, branch.Confirm, branch.Cancel} {
			if left[op] > 0 {
				left[op]--
				grow(append(so[:len(so):len(so)], op), left)
				left[op]++
			}
		}
	}
	grow(nil, map[branch.Operation]int{branch.Try: 2, branch.Confirm: 1, branch.Cancel: 2})
	return all
}

// testEveryPermutation of tries, a confirmation and cancellations has the expected answers,
// for taking and adding units, and leaves the item in the expected state.
func testEveryPermutation(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t))
	until := time.Now().Add(time.Hour)
	for way, of := range map[string]tcc.Resource[tcc.Want, tcc.Want]{"take": in.holds().Take(), "give": in.holds().Give()} {
		for i, ops := range permutations() {
			if way == "give" && len(ops) > 3 {
				continue // the rows are the same
			}
			item, id, state := fmt.Sprint(way, i), fmt.Sprint(way, "/", i), ""
			in.set(t, item, 10)
			for n, op := range ops {
				want := expected[state][op]
				if got := answer(in.do(t.Context(), of, id, op, tcc.Want{Item: item, N: 3}, until)); got != want[0] {
					t.Errorf("%s %v: call %d: %s, want %s", way, ops, n, got, want[0])
				}
				state = want[1]
			}
			if got := in.state(t, id, "b"); got != state {
				t.Errorf("%s %v: it is %q, want %q", way, ops, got, state)
			}
			want := map[string]tcc.Level{
				"takeheld": {Capacity: 10, Held: 3}, "takeconfirmed": {Capacity: 10, Sold: 3},
				"giveheld": {Capacity: 10, Announced: 3}, "giveconfirmed": {Capacity: 13},
			}[way+state]
			if want.Capacity == 0 {
				want.Capacity = 10
			}
			if got := in.level(t, item); got != want {
				t.Errorf("%s %v: %+v, want %+v", way, ops, got, want)
			}
		}
	}
}

// testRefusalsAreRemembered: a refused try is refused again, even if there is room by then;
// its cancellation has no effect.
func testRefusalsAreRemembered(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	take, until := in.holds().Take(), time.Now().Add(time.Hour)
	try := func(id, item string, n int64, until time.Time) string {
		return answer(in.do(t.Context(), take, id, branch.Try, tcc.Want{Item: item, N: n}, until))
	}
	for _, c := range []struct {
		id, item string
		n        int64
		until    time.Time
		state    string
	}{
		{"short", "room", 11, until, "short"}, {"unknown", "suite", 1, until, "unknown"},
		{"late", "room", 1, time.Now().Add(-time.Hour), "late"}, {"far", "room", 1, time.Now().Add(25 * time.Hour), "far"},
	} {
		if got := try(c.id, c.item, c.n, c.until); got != "refused" || in.state(t, c.id, "b") != c.state {
			t.Errorf("%s: %s, %s", c.id, got, in.state(t, c.id, "b"))
		}
		in.set(t, c.item, 100)
		txntest.Equal(t, c.id+": again", try(c.id, c.item, c.n, until), "refused")
		in.set(t, c.item, 10)
		if got := answer(in.do(t.Context(), take, c.id, branch.Cancel, tcc.Want{}, until)); got != "done" || in.state(t, c.id, "b") != c.state {
			t.Errorf("%s cancelled: %s, %s", c.id, got, in.state(t, c.id, "b"))
		}
	}
	if l := in.level(t, "room"); l != (tcc.Level{Capacity: 10}) {
		t.Errorf("%+v", l)
	}
}

// testOtherRequest: another request under the name of a branch is refused, without an
// effect.
func testOtherRequest(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room", "suite")
	until := time.Now().Add(time.Hour)
	ok(t, in.do(t.Context(), in.holds().Take(), "1", branch.Try, tcc.Want{Item: "room", N: 1}, until))
	later := until.Add(time.Hour)
	for what, err := range map[string]error{
		"more":     in.do(t.Context(), in.holds().Take(), "1", branch.Try, tcc.Want{Item: "room", N: 2}, later),
		"other":    in.do(t.Context(), in.holds().Take(), "1", branch.Try, tcc.Want{Item: "suite", N: 1}, later),
		"way back": in.do(t.Context(), in.holds().Give(), "1", branch.Try, tcc.Want{Item: "room", N: 1}, later),
	} {
		if class, _ := branch.ClassOf(err); class != branch.ClassFail || interlock.Kind(err) != interlock.Bug || !strings.Contains(err.Error(), "already tried") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if l := in.level(t, "room"); l != (tcc.Level{Capacity: 10, Held: 1}) {
		t.Errorf("%+v", l)
	}
	if got := databases.One[int64](t, in.DB, `select max(until_ms) from interlock_tcc_hold`); got != until.UnixMilli() {
		t.Errorf("it is held for %d ms longer", got-until.UnixMilli())
	}
}

// testStopped: a process that is paused within Confirmed blocks the next confirmation for at
// most Holds.Idle, and commits nothing when it wakes up.
func testStopped(t *testing.T, openDB func(testing.TB) *databases.DB) {
	const bound = 20 * time.Second
	in := open(t, openDB(t), "room")
	in.DB.Exec(t, `create table booking (id varchar(100))`)
	stopped, wake := make(chan struct{}, 1), make(chan struct{})
	former, next := in.holds(), in.holds()
	next.DB = in.DB.Again(t)
	book := func(ctx context.Context, tx driver.SQL, _ tcc.Want) error {
		_, err := tx.Exec(ctx, `insert into booking values ('1')`)
		return err
	}
	next.Confirmed = book
	former.Idle, former.Confirmed = time.Second, func(ctx context.Context, tx driver.SQL, w tcc.Want) error {
		err := book(ctx, tx, w)
		stopped <- struct{}{}
		<-wake
		return err
	}
	confirm := func(h tcc.Holds[driver.SQL]) func() error {
		return func() error {
			return in.do(context.Background(), h.Take(), "1", branch.Confirm, tcc.Want{}, time.Time{})
		}
	}
	ok(t, in.do(t.Context(), next.Take(), "1", branch.Try, tcc.Want{Item: "room", N: 2}, time.Now().Add(time.Hour)))
	late := testbed.Later(t, bound, confirm(former))
	select {
	case <-stopped:
	case <-time.After(bound):
		t.Fatal("Confirmed does not run")
	}
	err := testbed.Later(t, bound, confirm(next))
	failed := err()
	close(wake)
	ok(t, failed)
	if late() == nil {
		t.Error("the stopped process has committed")
	}
	txntest.Equal(t, "bookings", databases.One[int64](t, in.DB, `select count(*) from booking`), 1)
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
		want     int64
		call     func(ctx context.Context, db driver.SQL) error
	}{
		{"try", "1", 2, try(1)}, {"try again", "1", 1, try(1)}, {"confirm", "1", 3, confirm}, {"confirm again", "1", 2, confirm},
		{"try another", "2", 2, try(1)}, {"cancel", "2", 2, cancel}, {"cancel again", "2", 1, cancel}, {"cancel nothing", "3", 1, cancel},
		{"try too much", "4", 4, try(100)},
	} {
		var count databases.Counted
		ok(t, in.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
			err := c.call(call(ctx, c.id, "b", branch.Try), count.SQL(db))
			if answer(err) == "refused" {
				err = nil
			}
			return err
		}))
		txntest.Equal(t, c.what+": statements", count.Statements.Load(), c.want)
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

// testReads: neither a sweep nor the retention reads every hold. On MariaDB, Create adds the index for
// that to the table of a former version.
func testReads(t *testing.T, openDB func(testing.TB) *databases.DB) {
	db := openDB(t)
	if db.Dialect == driver.MariaDB {
		db.Exec(t, `create table interlock_tcc_hold (until_ms bigint, ask_ms bigint, changed_ms bigint, index interlock_tcc_hold_ask (ask_ms))`)
		db.Do(t, tcc.Table{}.Create)
		if n := databases.One[int64](t, db, `select count(*) from information_schema.statistics
			where table_schema = database() and table_name = 'interlock_tcc_hold' and column_name = 'until_ms'`); n != 1 {
			t.Errorf("%d indexes", n)
		}
		return
	}
	in := open(t, db)
	p := &databases.Planned{BeginnerAt: in.DB}
	ok(t, txntest.Second(tcc.Holds[driver.SQL]{DB: p, Table: in.Table}.Sweep(t.Context(), decided, 10)))
	p.Do(t, func(ctx context.Context, db driver.SQL) error {
		_, _, overdue := in.Overdue(ctx, db)
		return errors.Join(overdue, txntest.Second(in.Forget(ctx, db, 24*time.Hour, 10)))
	})
	p.Want(t, "ask_ms", "until_ms", "changed_ms")
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
	txntest.Equal(t, "bookings", databases.One[int64](t, in.DB, `select count(*) from booking where id = '1 room 2'`), 1)
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

// TestReconcile: it repeats the calls of ended transactions, which changes nothing. A
// participant that has lost a confirmed hold, by a restore from a backup, refuses, and is
// reported.
func TestReconcile(t *testing.T) {
	t.Parallel()
	north, south := open(t, databases.Open(t, testbed.Postgres(t), databases.Pgx)), open(t, databases.Open(t, testbed.MariaDB(t), databases.Maria))
	north.set(t, "room", 3)
	south.set(t, "seat", 1)
	north.Do(t, journal.NewTable(north.DB, "").Create)
	j, err := journal.New(journal.NewTable(north.DB, ""), &journal.Options{Shards: 4})
	ok(t, err)
	defer j.Close()
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond})
	ok(t, err)
	room, seat := tcc.Define("rooms", north.holds().Take()), tcc.Define("seats", south.holds().Take())
	engine, err := tcc.New(c, nil, room, seat)
	ok(t, err)
	defer txntest.Run(t.Context(), c.Run)()
	from := time.Now().Add(-time.Minute)
	for id, n := range map[string]int64{"good": 1, "too many": 2} {
		_, err := engine.Run(t.Context(), "booking", id, room.Try(tcc.Want{Item: "room", N: 1}), seat.Try(tcc.Want{Item: "seat", N: n}))
		if err != nil && !errors.Is(err, tcc.ErrCancelled) {
			t.Fatal(err)
		}
		_, _ = engine.Wait(t.Context(), id) // a cancelled one is an error
	}
	rooms, seats := north.level(t, "room"), south.level(t, "seat")
	found := func(since time.Time) (all []tcc.Finding) {
		t.Helper()
		for f, err := range engine.Reconcile(t.Context(), since) {
			ok(t, err)
			all = append(all, f)
		}
		return all
	}
	if all := found(from); len(all) > 0 {
		t.Errorf("nothing is lost, and found was %+v", all)
	}
	south.DB.Exec(t, `delete from interlock_tcc_hold where transaction_id = 'good'`)
	all := found(from)
	if len(all) != 1 || all[0].ID != "good" || all[0].Type != "booking" || all[0].Step != "seats" || all[0].Want != "confirm" || !all[0].Refused {
		t.Errorf("found %+v", all)
	}
	if later := found(time.Now().Add(time.Hour)); len(later) > 0 {
		t.Errorf("of nothing that ended later: %+v", later)
	}
	if again := north.level(t, "room"); again != rooms || south.level(t, "seat") != seats || rooms.Sold != 1 {
		t.Errorf("rooms %+v, then %+v", rooms, again)
	}
}
