package version_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// account is a row of the table that updates work on.
type account struct {
	Owner   string
	Balance int64
	Note    *string
	Raw     []byte
}

var accounts = version.Rows[account]{
	Table: "account", Key: "id", Version: "version",
	Columns: []string{"owner", "balance", "note", "raw"},
	Fields:  func(a *account) []any { return []any{&a.Owner, &a.Balance, &a.Note, &a.Raw} },
}

func (w world) accounts() {
	raw := map[driver.Dialect]string{driver.Postgres: "bytea", driver.MariaDB: "longblob"}[w.Dialect]
	w.DB.Exec(w.T, `create table account (id bigint primary key, owner varchar(64) not null, balance bigint not null,
		note varchar(64), raw `+raw+`, version bigint)`, `insert into account (id, owner, balance) values (1, 'alice', 0)`)
}

// testLostUpdate: concurrent updates add one, and none is lost; conflicts are counted.
func testLostUpdate(w world) {
	w.accounts()
	const writers, each = 16, 5
	var stats version.Stats
	u := updater(w.T, version.Options{Attempts: 1000, Hooks: stats.Hooks()})
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for range each {
				err := version.Update(w.Context(), u, w.DB, accounts, "1", func(_ context.Context, a *account) error {
					a.Balance++
					return nil
				})
				if err != nil {
					w.Error(err)
				}
			}
		})
	}
	running.Wait()
	if got := w.text(`select concat(balance, ' ', version) from account`); got != fmt.Sprintf("%d %[1]d", writers*each) {
		w.Errorf("balance and version %s, want %d each", got, writers*each)
	}
	c := stats.Counts()
	if c.Attempts != writers*each+c.Conflicts || c.Retries != c.Conflicts || c.Exhausted != 0 {
		w.Errorf("%+v do not add up", c)
	}
	w.Logf("%d writers: %+v, conflict rate %.2f", writers, c, c.ConflictRate())
}

// overtake changes the row while an update works on its own copy.
func (w world) overtake() {
	w.DB.Exec(w.T, `update account set balance = balance + 100, version = coalesce(version, 0) + 1`)
}

func testConflicts(w world) {
	w.accounts()
	var stats version.Stats
	calls := 0
	overtaken := func(_ context.Context, a *account) error {
		calls++
		a.Balance = -1
		w.overtake()
		return nil
	}
	err := version.Update(w.Context(), updater(w.T, version.Options{Hooks: stats.Hooks()}), w.DB, accounts, "1", overtaken)
	mustFail(w.T, err, interlock.Retryable, version.ErrConflict)
	if conflict, found := errors.AsType[*version.ConflictError](err); !found || conflict.Attempts != version.DefaultAttempts || conflict.Name != "1" || calls != version.DefaultAttempts {
		w.Errorf("after %d attempts: %v", calls, err)
	}
	if c := stats.Counts(); c != (version.Counts{Attempts: 4, Conflicts: 4, Retries: 3, Exhausted: 1}) || c.ConflictRate() != 1 {
		w.Errorf("%+v", c)
	}
	// The last attempt meets no change of others.
	calls = 0
	err = version.Update(w.Context(), updater(w.T, version.Options{}), w.DB, accounts, "1", func(ctx context.Context, a *account) error {
		if calls < version.DefaultAttempts-1 {
			return overtaken(ctx, a)
		}
		a.Balance++
		return nil
	})
	ok(w.T, err)
	if got := w.text(`select concat(balance) from account`); got != "701" {
		w.Errorf("balance %s: an update was lost", got)
	}

	var handed *version.ConflictError
	errQueued := errors.New("queued")
	u := updater(w.T, version.Options{Attempts: 2, Hooks: stats.Hooks(), HandOff: func(_ context.Context, err *version.ConflictError) error {
		handed = err
		return errQueued
	}})
	err = version.Update(w.Context(), u, w.DB, accounts, "1", overtaken)
	if !errors.Is(err, errQueued) || handed == nil || handed.Attempts != 2 || stats.Counts().HandedOff != 1 {
		w.Errorf("%v; handed off %+v, counted %+v", err, handed, stats.Counts())
	}

	err = version.Update(w.Context(), u, w.DB, accounts, "2", overtaken)
	var missing *version.NoRowError
	if mustFail(w.T, err, interlock.Definite, nil); !errors.As(err, &missing) {
		w.Errorf("no row: %v", err)
	}
	errOwn := errors.New("not enough money")
	before := w.text(`select concat(balance, ' ', version) from account`)
	err = version.Update(w.Context(), u, w.DB, accounts, "1", func(_ context.Context, a *account) error {
		a.Balance = 0
		return errOwn
	})
	if after := w.text(`select concat(balance, ' ', version) from account`); err != errOwn || after != before {
		w.Errorf("%v, and %s became %s", err, before, after)
	}
}

// testSerialization: a transaction that the database undid runs again as a new one; one that fails
// for other reasons does not.
func testSerialization(w world) {
	w.accounts()
	fails := map[driver.Dialect][]string{
		driver.Postgres: {`do $$ begin raise exception sqlstate '40001'; end $$`, `do $$ begin raise exception sqlstate '40P01'; end $$`},
		driver.MariaDB:  {`signal sqlstate '40001' set mysql_errno = 1213`, `signal sqlstate 'HY000' set mysql_errno = 1020`},
	}[w.Dialect]
	var stats version.Stats
	u := updater(w.T, version.Options{Hooks: stats.Hooks()})
	n := 0
	ok(w.T, version.Tx(w.Context(), u, w.DB, "1", func(ctx context.Context, db driver.SQL) error {
		n++
		if _, err := db.Exec(ctx, `update account set balance = balance + 1`); err != nil {
			return err
		}
		if n <= len(fails) {
			_, err := db.Exec(ctx, fails[n-1])
			return err
		}
		return nil
	}))
	if got, c := w.text(`select concat(balance) from account`), stats.Counts(); got != "1" || c.Conflicts != 2 || c.Attempts != 3 {
		w.Errorf("balance %s after %+v", got, c)
	}
	err := version.Tx(w.Context(), u, w.DB, "1", func(ctx context.Context, db driver.SQL) error {
		n++
		_, err := db.Exec(ctx, `insert into account (id, owner, balance) values (1, 'bob', 0)`)
		return err
	})
	mustFail(w.T, err, interlock.Definite, nil)
	if n != 4 {
		w.Errorf("a unique violation was tried %d times", n-3)
	}

	if w.Dialect != driver.Postgres {
		return
	}
	// A REPEATABLE READ transaction is overtaken.
	n = 0
	ok(w.T, version.Update(w.Context(), u, leveled{w.DB.BeginnerAt, driver.RepeatableRead}, accounts, "1", func(_ context.Context, a *account) error {
		if n++; n == 1 {
			w.overtake()
		}
		a.Balance++
		return nil
	}))
	if got := w.text(`select concat(balance) from account`); got != "102" || n != 2 {
		w.Errorf("balance %s after %d attempts", got, n)
	}
}

// leveled begins transactions at a level.
type leveled struct {
	driver.BeginnerAt[driver.SQL]
	level driver.Isolation
}

func (l leveled) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return l.BeginAt(ctx, l.level)
}

func testUncertainUpdate(w world) {
	w.accounts()
	calls := 0
	ctx, cancel := context.WithTimeout(w.Context(), bound)
	defer cancel()
	err := version.Update(ctx, updater(w.T, version.Options{}), w.lossy(), accounts, "1", func(_ context.Context, a *account) error {
		calls++
		a.Balance++
		return nil
	})
	mustFail(w.T, err, interlock.Uncertain, interlock.ErrUncertain)
	if got := w.text(`select concat(balance, ' ', version) from account`); got != "1 1" || calls != 1 {
		w.Errorf("%s after %d attempts", got, calls)
	}
}

// testLostInside: the server ends the session while fn runs. COMMIT was never sent, so fn runs
// again, whatever the kind of an inner guard's error.
func testLostInside(w world) {
	w.accounts()
	session, end := `select pg_backend_pid()`, `select pg_terminate_backend($1::int)`
	if w.Dialect == driver.MariaDB {
		session, end = `select connection_id()`, `kill ?`
	}
	calls := 0
	killed := func(ctx context.Context, db driver.SQL) error {
		if calls++; calls > 1 {
			return nil
		}
		id, err := databases.Value[int64](ctx, db, session)
		ok(w.T, err)
		return w.Try(ctx, func(ctx context.Context, other driver.SQL) error {
			_, err := other.Exec(ctx, end, id)
			return err
		})
	}
	err := version.Tx(w.Context(), updater(w.T, version.Options{}), w.DB, "1", func(ctx context.Context, db driver.SQL) error {
		if err := killed(ctx, db); err != nil {
			return err
		}
		_, err := version.Table{}.Apply(ctx, db, change("a", 1, ""))
		return err
	})
	if s := w.state("a"); err != nil || calls != 2 || s.Stamp.Version != 1 {
		w.Errorf("after %d calls: %v; %+v", calls, err, s)
	}
	calls = 0
	errOutside := &interlock.Error{Op: "charge", Kind: interlock.Uncertain, Err: errors.New("no answer from the bank")}
	err = version.Tx(w.Context(), updater(w.T, version.Options{}), w.DB, "1", func(context.Context, driver.SQL) error {
		calls++
		return errOutside
	})
	if err != error(errOutside) || calls != 1 {
		w.Errorf("what is no driver's: %v after %d calls", err, calls)
	}
}

// testLongNumbers: in rows that are updated, and in columns.
func testLongNumbers(w world) {
	type big struct{ N int64 }
	w.DB.Exec(w.T, `create table big (id bigint primary key, version bigint, n bigint not null)`,
		`insert into big (id, n) values (9007199254740992, 0), (9007199254740993, 0), (9007199254740994, 0),
			(9223372036854775806, 0), (9223372036854775807, 0), (-9007199254740993, 0), (-9007199254740992, 0)`)
	c := version.Column{Table: "big", Key: "id", Version: "version"}
	rows := version.Rows[big]{Table: "big", Key: "id", Version: "version", Columns: []string{"n"},
		Fields: func(b *big) []any { return []any{&b.N} }}
	keys := []string{"9007199254740993", "9223372036854775806", "-9007199254740993"}
	for _, id := range keys {
		w.mustApply(c, change(id, 1<<53, ""), version.Applied)
		w.mustApply(c, change(id, 1<<53, ""), version.Duplicate)
		ok(w.T, version.Update(w.Context(), updater(w.T, version.Options{}), w.DB, rows, id, func(_ context.Context, b *big) error {
			b.N++
			return nil
		}))
		if got := w.text(`select concat(version, ' ', n) from big where id = ` + id); got != "9007199254740993 1" {
			w.Errorf("%s is %s", id, got)
		}
	}
	if got := w.text(`select concat(count(*)) from big where n > 0 or version is not null`); got != fmt.Sprint(len(keys)) {
		w.Errorf("%s rows were written", got)
	}
	for _, id := range []string{"12abc", "9007199254740995"} {
		_, err := w.apply(c, change(id, 1, ""))
		mustFail(w.T, err, interlock.Definite, nil)
	}
	// The greatest version, in the row and in the code that adds one.
	w.mustApply(c, change(keys[0], math.MaxInt64, ""), version.Applied)
	err := version.Update(w.Context(), updater(w.T, version.Options{}), w.DB, rows, keys[0], func(context.Context, *big) error { return nil })
	mustFail(w.T, err, interlock.Definite, nil)
}

// testRowKinds: texts, numbers, NULL and bytes, and invalid Rows.
func testRowKinds(w world) {
	w.accounts()
	u := updater(w.T, version.Options{})
	note := `it's "quoted" \`
	want := account{"bob", -1 << 62, &note, []byte{0, 255, '\''}}
	ok(w.T, version.Update(w.Context(), u, w.DB, accounts, "1", func(_ context.Context, a *account) error {
		if a.Owner != "alice" || a.Note != nil || a.Raw != nil {
			return fmt.Errorf("read %+v", a)
		}
		*a = want
		return nil
	}))
	ok(w.T, version.Update(w.Context(), u, w.DB, accounts, "1", func(_ context.Context, a *account) error {
		if a.Owner != want.Owner || a.Balance != want.Balance || a.Note == nil || *a.Note != note || !slices.Equal(a.Raw, want.Raw) {
			return fmt.Errorf("read %+v", a)
		}
		a.Note, a.Raw = nil, nil
		return nil
	}))
	if got := w.text(`select concat(owner, version, note is null, raw is null) from account`); got != "bob2tt" && got != "bob211" {
		w.Errorf("the row is %s", got)
	}
	none := func(context.Context, *account) error { return nil }
	for name, bad := range map[string]func(*version.Rows[account]){
		"no fields":      func(r *version.Rows[account]) { r.Fields = nil },
		"no columns":     func(r *version.Rows[account]) { r.Columns = nil },
		"fewer columns":  func(r *version.Rows[account]) { r.Columns = r.Columns[1:] },
		"no name":        func(r *version.Rows[account]) { r.Columns = []string{"", "balance", "note", "raw"} },
		"no version":     func(r *version.Rows[account]) { r.Version = "" },
		"quotes in name": func(r *version.Rows[account]) { r.Table = "a.b.c" },
	} {
		rows := accounts
		bad(&rows)
		if err := version.Update(w.Context(), u, w.DB, rows, "1", none); interlock.Kind(err) != interlock.Bug {
			w.Errorf("%s: %v", name, err)
		}
	}
	mustFail(w.T, version.Update(w.Context(), u, w.DB, accounts, "", none), interlock.Bug, interlock.ErrName)
}

func TestImpossibleOptions(t *testing.T) {
	for _, o := range []version.Options{{Attempts: -1}, {First: -1}, {Max: -1}} {
		_, err := version.NewUpdater(&o)
		mustFail(t, err, interlock.Bug, nil)
		_, err = version.NewStore(nil, &o)
		mustFail(t, err, interlock.Bug, nil)
	}
	u, err := version.NewUpdater(nil)
	ok(t, err)
	_, err = version.NewStore(nil, nil)
	mustFail(t, err, interlock.Bug, nil)
	fn := func(context.Context, driver.SQL) error { return nil }
	mustFail(t, version.Tx(t.Context(), u, nil, "1", fn), interlock.Bug, nil)
	mustFail(t, version.Tx[driver.SQL](t.Context(), nil, nil, "1", fn), interlock.Bug, nil)
	mustFail(t, version.Tx[driver.SQL](t.Context(), u, nil, "1", nil), interlock.Bug, nil)
	mustFail(t, version.Update[driver.SQL](t.Context(), u, nil, accounts, "1", nil), interlock.Bug, nil)
	s, err := version.NewStore(memory.NewVersions(), nil)
	ok(t, err)
	mustFail(t, s.Update(t.Context(), order, nil), interlock.Bug, nil)
}

// behind starts fn, and returns once fn waits for a lock. wait returns fn's error.
func (w world) behind(fn func() error) (wait func() error) {
	w.Helper()
	wait = testbed.Later(w.T, bound, fn)
	testbed.Eventually(w.T, "it waits for a lock", bound, func() bool { return w.Waiting(w.T) == 1 })
	return wait
}

// first returns a transaction that has applied c and set the status of its order.
func (w world) first(g version.Guard, c version.Change) driver.Tx[driver.SQL] {
	w.Helper()
	tx := w.Begun(w.T, driver.SessionIsolation)
	if o, err := g.Apply(w.Context(), tx, c); err != nil || o != version.Applied {
		w.Fatal(o, err)
	}
	_, err := tx.Exec(w.Context(), setStatus(c.Entity, c.Stamp.String()))
	ok(w.T, err)
	return tx
}

// testWaits: the second transaction waits, then decides by the new state, and sees it.
func testWaits(w world) {
	for kind, g := range w.guards() {
		w.order(kind)
		for _, step := range []struct {
			first, second version.Change
			commit        bool
			want          version.Outcome
			status        string // the status that the second one reads
		}{
			{change(kind, 2, ""), change(kind, 1, ""), false, version.Applied, "new"}, // a rolled back change does not count
			{change(kind, 9, ""), change(kind, 8, ""), true, version.Stale, "9"},
			{change(kind, 10, ""), change(kind, 10, ""), true, version.Duplicate, "10"},
			{change(kind, 11, ""), change(kind, 12, ""), true, version.Applied, "11"},
			{terminal(change(kind, 13, "")), change(kind, 14, ""), true, version.Terminal, "13"},
		} {
			first := w.first(g, step.first)
			var o version.Outcome
			var status string
			second := w.behind(func() error {
				return w.Try(w.Context(), func(ctx context.Context, db driver.SQL) (err error) {
					if o, err = g.Apply(ctx, db, step.second); err == nil {
						status, err = databases.Value[string](ctx, db, `select status from orders where id = `+quoted(kind))
					}
					return err
				})
			})
			if step.commit {
				ok(w.T, first.Commit(w.Context()))
			} else {
				ok(w.T, first.Rollback(w.Context()))
			}
			if ok(w.T, second()); o != step.want || status != step.status {
				w.Errorf("%s: %+v behind %+v: %v, reading %q", kind, step.second, step.first, o, status)
			}
		}
	}
}

// testRowGone: the row is deleted while a change waits for it.
func testRowGone(w world) {
	w.guards()
	w.order("a")
	tx := w.Begun(w.T, driver.SessionIsolation)
	_, err := tx.Exec(w.Context(), `delete from orders`)
	ok(w.T, err)
	second := w.behind(func() error {
		_, err := w.apply(version.Column{Table: "orders", Key: "id", Version: "version"}, change("a", 1, ""))
		return err
	})
	ok(w.T, tx.Commit(w.Context()))
	var missing *version.NoRowError
	err = second()
	if mustFail(w.T, err, interlock.Definite, nil); !errors.As(err, &missing) || missing.Key != "a" {
		w.Errorf("%v", err)
	}
}

// testCrossed: two transactions apply to the same entities in opposite orders, and
// the database undoes one.
func testCrossed(w world) {
	for kind, g := range w.guards() {
		a, b := kind+" a", kind+" b"
		w.order(a)
		w.order(b)
		first := w.first(g, change(a, 1, ""))
		second := w.behind(func() error {
			return w.Try(w.Context(), func(ctx context.Context, db driver.SQL) error {
				if _, err := g.Apply(ctx, db, change(b, 2, "")); err != nil {
					return err
				}
				_, err := g.Apply(ctx, db, change(a, 2, ""))
				return err
			})
		})
		_, mine := g.Apply(w.Context(), first, change(b, 1, ""))
		if mine == nil {
			mine = first.Commit(w.Context())
		} else {
			ok(w.T, first.Rollback(w.Context()))
		}
		other := second()
		if (mine == nil) == (other == nil) {
			w.Fatalf("%s: %v and %v", kind, mine, other)
		}
		mustFail(w.T, errors.Join(mine, other), interlock.Retryable, nil)
	}
}
