package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

var column = fence.Column{Table: "account", Key: "id", Column: "fence"}

// marks are both kinds, which behave alike on an existing row.
func (w world) marks() map[string]fence.Marks {
	return map[string]fence.Marks{"table": w.table, "column": column}
}

func testStale(t *testing.T, w world) {
	for kind, marks := range w.marks() {
		ran := false
		read := func(ctx context.Context, db driver.SQL) error {
			ran = true
			_, err := databases.Value[int64](ctx, db, `select balance from account where id = 'alice'`)
			return err
		}
		write := func(ctx context.Context, db driver.SQL) error {
			ran = true
			_, err := db.Exec(ctx, `update account set balance = balance - 1 where id = 'alice'`)
			return err
		}
		for name, fn := range map[string]body{"read": read, "write": write} {
			for _, n := range []int{5, 5, 7} {
				ok(t, w.tx(t.Context(), marks, grant(n, bound), "alice", fn))
			}
			ran = false
			err := w.tx(t.Context(), marks, grant(6, bound), "alice", fn)
			wantStale(t, err, token(7), token(6))
			if ran {
				t.Errorf("%s: a stale %s ran", kind, name)
			}
			ok(t, w.tx(t.Context(), marks, grant(7, bound), "alice", fn))
			w.Exec(t, `delete from interlock_fence`, `update account set fence = null`)
		}
		other := map[string]string{"table": "any", "column": "bob"}[kind]
		ok(t, w.enter(t, marks, other, token(1))) // resources are independent
	}
	if got := w.text(t, `select concat(balance) from account where id = 'alice'`); got != "92" {
		t.Errorf("balance %s after 8 guarded writes", got)
	}
}

func testStrict(t *testing.T, w world) {
	strict := map[string]fence.Marks{"table": fence.Table{Strict: true},
		"column": fence.Column{Table: "account", Key: "id", Column: "fence", Strict: true}}
	for kind, marks := range strict {
		ok(t, w.enter(t, marks, "alice", token(5)))
		wantStale(t, w.enter(t, marks, "alice", token(5)), token(5), token(5))
		ok(t, w.enter(t, w.marks()[kind], "alice", token(5)))
		wantStale(t, w.enter(t, marks, "alice", token(5)), token(5), token(5))
		next, _ := token(5).Next()
		ok(t, w.enter(t, marks, "alice", next))
	}
}

func testAbsurd(t *testing.T, w world) {
	at := func(d time.Duration) interlock.Token {
		token, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(d)), interlock.MaxSub)
		ok(t, err)
		return token
	}
	for kind, marks := range w.marks() {
		for _, fresh := range []bool{true, false} {
			for _, absurd := range []interlock.Token{math.MaxInt64, at(interlock.MaxAhead + time.Minute)} {
				wantKind(t, w.enter(t, marks, "alice", absurd), interlock.Definite, interlock.ErrImplausibleToken)
			}
			if m := w.mark(t, "alice"); fresh && m.Token != 0 {
				t.Errorf("%s: an absurd token left the mark %v", kind, m)
			}
			ok(t, w.enter(t, marks, "alice", token(1)))
		}
		ok(t, w.enter(t, marks, "alice", at(interlock.MaxAhead-time.Minute)))
		for _, never := range []interlock.Token{0, -1, 1} { // 1 has no counter
			wantKind(t, w.enter(t, marks, "alice", never), interlock.Bug, nil)
		}
		w.Exec(t, `delete from interlock_fence`)
	}
}

// testRefusedAndCommitted violates Enter's documentation: it continues after a
// refusal.
func testRefusedAndCommitted(t *testing.T, w world) {
	ok(t, w.enter(t, w.table, "alice", token(9)))
	before := w.mark(t, "alice")
	tx := w.Begun(t, driver.SessionIsolation)
	wantStale(t, w.table.Enter(t.Context(), tx, "alice", token(8), "late"), token(9), token(8))
	ok(t, tx.Commit(t.Context()))
	if after := w.mark(t, "alice"); after != before {
		t.Errorf("the mark was %+v and is %+v", before, after)
	}
}

// testWaits begins a second transaction during a first one. The statement of the
// second begins before the first one commits, so that its snapshot is old.
func testWaits(t *testing.T, w world) {
	for _, tt := range []struct {
		name          string
		before        int // the mark before; 0 for no mark
		first, second int
		commit        bool
		refused       bool
	}{
		{"later token second", 1, 5, 6, true, false},
		{"later token first", 1, 6, 5, true, true},
		{"later token first, on a new resource", 0, 6, 5, true, true},
		{"later token second, on a new resource", 0, 5, 6, true, false},
		{"later token first, rolled back", 1, 6, 5, false, false},
		{"later token first, rolled back, on a new resource", 0, 6, 5, false, false},
	} {
		for kind, marks := range w.marks() {
			w.Exec(t, `delete from interlock_fence`, `update account set fence = null`)
			if tt.before > 0 {
				ok(t, w.enter(t, marks, "alice", token(tt.before)))
			}
			first := w.Begun(t, driver.SessionIsolation)
			ok(t, marks.Enter(t.Context(), first, "alice", token(tt.first), "first"))
			second := testbed.Later(t, bound, func() error { return w.enter(t, marks, "alice", token(tt.second)) })
			w.blocked(t, 1)
			if tt.commit {
				ok(t, first.Commit(t.Context()))
			} else {
				ok(t, first.Rollback(t.Context()))
			}
			err := second()
			switch {
			case tt.refused:
				wantStale(t, err, token(tt.first), token(tt.second))
			case err != nil:
				t.Errorf("%s, %s: %v", tt.name, kind, err)
			}
		}
	}
}

// testSnapshots lets a transaction whose reads are of one instant wait to enter.
// It is refused, or reads the state after its entry.
func testSnapshots(t *testing.T, w world) {
	for level, option := range w.isolation {
		c := w.reach(t, databases.With(w.URL, option))
		for kind, marks := range w.marks() {
			w.Exec(t, `delete from interlock_fence`, `update account set fence = null, balance = 100`)
			ok(t, w.enter(t, marks, "alice", token(1)))
			first := w.Begun(t, driver.SessionIsolation)
			ok(t, marks.Enter(t.Context(), first, "alice", token(1), "first"))
			second := testbed.Later(t, bound, func() error {
				return c.tx(t.Context(), marks, grant(2, bound), "alice", func(ctx context.Context, db driver.SQL) error {
					if !w.snapshots {
						t.Errorf("%s, %s: ran on a snapshot from before the last write", level, kind)
					}
					if b, err := databases.Value[int64](ctx, db, `select balance from account where id = 'alice'`); b != 99 {
						t.Errorf("%s, %s: read %d, %v", level, kind, b, err)
					}
					return nil
				})
			})
			w.blocked(t, 1)
			_, err := first.Exec(t.Context(), `update account set balance = balance - 1 where id = 'alice'`)
			ok(t, err)
			ok(t, first.Commit(t.Context()))
			if err := second(); !w.snapshots || err != nil {
				wantKind(t, err, interlock.Retryable, nil)
			}
			ok(t, c.tx(t.Context(), marks, grant(2, bound), "alice", nothing))
		}
	}
}

// testEarlySnapshot reads before it enters, which the documentation forbids, in a
// transaction whose reads are of one instant.
func testEarlySnapshot(t *testing.T, w world) {
	for _, level := range []string{"repeatable read", "serializable"} {
		c := w.reach(t, databases.With(w.URL, w.isolation[level]))
		for kind, marks := range w.marks() {
			for _, before := range []int{0, 1} {
				w.Exec(t, `delete from interlock_fence`, `update account set fence = null`)
				if before > 0 {
					ok(t, w.enter(t, marks, "alice", token(before)))
				}
				early := c.Begun(t, driver.SessionIsolation)
				// Of bob, since a serializable transaction of MariaDB locks what it reads.
				_, err := databases.Value[int64](t.Context(), early, `select balance from account where id = 'bob'`)
				ok(t, err)
				ok(t, w.enter(t, marks, "alice", token(2)))
				err = marks.Enter(t.Context(), early, "alice", token(3), "early")
				if !w.snapshots || level != "serializable" {
					wantKind(t, err, interlock.Retryable, nil)
				}
				if err == nil && kind == "table" && w.text(t, `select concat(token) from interlock_fence`) == "" {
					t.Error("nothing has entered")
				}
				ok(t, early.Rollback(t.Context()))
				undisturbed := c.Begun(t, driver.SessionIsolation)
				_, err = databases.Value[int64](t.Context(), undisturbed, `select balance from account where id = 'bob'`)
				ok(t, err)
				for _, n := range []int{4, 4, 5} {
					ok(t, marks.Enter(t.Context(), undisturbed, "alice", token(n), "undisturbed"))
				}
				ok(t, undisturbed.Commit(t.Context()))
				wantStale(t, w.enter(t, marks, "alice", token(4)), token(5), token(4))
			}
		}
	}
}

func testNames(t *testing.T, w world) {
	resources := []string{`a'; drop table account; --`, "ä/\"b\"\n", strings.Repeat("x", driver.MaxName), "%s $1", "a", "A"}
	for i, r := range resources {
		ok(t, w.enter(t, w.table, r, token(10+i)))
	}
	for i, r := range resources {
		if m := w.mark(t, r); m.Token != token(10+i) || m.Source != "tester" || time.Since(m.Raised).Abs() > time.Hour {
			t.Errorf("%q has the mark %+v", r, m)
		}
	}
	for _, r := range []string{"", strings.Repeat("x", driver.MaxName+1), "a\x00b", "\xff"} {
		wantKind(t, w.enter(t, w.table, r, token(1)), interlock.Bug, interlock.ErrName)
	}
	ok(t, w.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
		return w.table.Enter(ctx, db, "r", token(1), "\xff\x00 me")
	}))
	if got := w.mark(t, "r").Source; got != "\uFFFD\uFFFD me" {
		t.Errorf("source %q", got)
	}
	err := w.enter(t, fence.Table{Name: "missing"}, "r", token(1))
	if wantKind(t, err, interlock.Definite, nil); !strings.Contains(fmt.Sprint(err), "with Create") {
		t.Errorf("%v does not say what to do", err)
	}
}

func (w world) rebase(t *testing.T, resource string, to interlock.Token, reason, by string) (old driver.Mark, err error) {
	t.Helper()
	err = w.Try(t.Context(), func(ctx context.Context, db driver.SQL) (err error) {
		old, err = w.table.Rebase(ctx, db, resource, to, reason, by)
		return err
	})
	return old, err
}

func testRebase(t *testing.T, w world) {
	if m := w.mark(t, "r"); m != (driver.Mark{}) {
		t.Errorf("a resource that nothing entered has the mark %+v", m)
	}
	ok(t, w.enter(t, w.table, "r", token(9)))
	shown := w.mark(t, "r")
	if shown.Token != token(9) || shown.Source != "tester" || time.Since(shown.Raised).Abs() > time.Hour {
		t.Errorf("shown: %+v", shown)
	}

	for _, tt := range []struct {
		to         interlock.Token
		reason, by string
		kind       interlock.ErrorKind
	}{
		{token(1), "", "ops", interlock.Bug},
		{token(1), " \n", "ops", interlock.Bug},
		{token(1), "restored", "", interlock.Bug},
		{-1, "restored", "ops", interlock.Bug},
		{7, "restored", "ops", interlock.Bug},
		{math.MaxInt64, "restored", "ops", interlock.Definite},
	} {
		_, err := w.rebase(t, "r", tt.to, tt.reason, tt.by)
		wantKind(t, err, tt.kind, nil)
	}
	tx := w.Begun(t, driver.SessionIsolation)
	_, err := w.table.Rebase(t.Context(), tx, "r", token(1), "changed my mind", "ops")
	ok(t, err)
	ok(t, tx.Rollback(t.Context()))
	if m := w.mark(t, "r"); m != shown || w.text(t, `select concat(count(*)) from interlock_fence_rebase`) != "0" {
		t.Errorf("refused or rolled back, a rebase left %+v", m)
	}

	old, err := w.rebase(t, "r", token(3), "restored from a backup", "ops")
	ok(t, err)
	if old != shown {
		t.Errorf("it replaced %+v, not %+v", old, shown)
	}
	if m := w.mark(t, "r"); m.Token != token(3) || m.Source != "rebase by ops: restored from a backup" || m.Raised.Before(shown.Raised) {
		t.Errorf("after the rebase: %+v", m)
	}
	wantStale(t, w.enter(t, w.table, "r", token(2)), token(3), token(2))
	ok(t, w.enter(t, w.table, "r", token(4)))

	old, err = w.rebase(t, "new", token(5), "moved here", "ops")
	ok(t, err)
	if old != (driver.Mark{}) {
		t.Errorf("it replaced %+v, and there was nothing", old)
	}
	old, err = w.rebase(t, "new", 0, "start again", "ops")
	ok(t, err)
	if old.Token != token(5) {
		t.Errorf("it replaced %+v", old)
	}
	ok(t, w.enter(t, w.table, "new", token(1)))

	want := "r|" + token(9).String() + "|" + token(3).String() + "|restored from a backup|ops;" +
		"new|0|" + token(5).String() + "|moved here|ops;new|" + token(5).String() + "|0|start again|ops"
	if got := w.text(t, w.audit); got != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
}

// testListed: the order of a list is that of bytes, so those of a prefix are next to each other.
func testListed(t *testing.T, w world) {
	db := w.DB
	if db.Dialect == driver.Postgres {
		db = db.Collated(t)
	}
	db.Do(t, fence.Table{}.Create)
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		for _, resource := range []string{"a1", "a/2", "B", "a/1", "A/1"} {
			if err := w.table.Enter(ctx, tx, resource, token(1), ""); err != nil {
				return err
			}
		}
		all, err := w.table.Resources(ctx, tx, "a/", 3)
		if got := fmt.Sprint(all); got != "[a/1 a/2 a1]" {
			t.Errorf("listed %s", got)
		}
		return err
	})
}

// TestMisuse is refused before any request to a database.
func TestMisuse(t *testing.T) {
	_, err := fence.Table{}.Show(t.Context(), foreign{}, "r")
	wantKind(t, err, interlock.Bug, nil)
	wantKind(t, fence.Table{}.Create(t.Context(), foreign{}), interlock.Bug, nil)
	wantKind(t, fence.Column{Table: "t", Key: "k", Column: "c"}.Enter(t.Context(), foreign{}, "r", token(1), ""), interlock.Bug, nil)
}

// foreign is an unsupported database.
type foreign struct{ driver.SQL }

func (foreign) Dialect() driver.Dialect { return "klingon" }

// testShared: a shared mark is not raised meanwhile, and can be shared by others; a
// transaction that shares it later sees the raised mark.
func testShared(t *testing.T, w world) {
	ok(t, w.enter(t, w.table, "a", token(1)))
	ok(t, w.enter(t, w.table, "b", token(7)))
	ok(t, w.enter(t, w.table, "c", token(7)))
	share := func(db driver.SQL) map[string]interlock.Token {
		t.Helper()
		seen, err := w.table.Share(t.Context(), db, "b", "a", "nothing")
		ok(t, err)
		return seen
	}
	first, second := w.Begun(t, driver.SessionIsolation), w.Begun(t, driver.SessionIsolation)
	for _, tx := range []driver.Tx[driver.SQL]{first, second} {
		if got, want := fmt.Sprint(share(tx)), fmt.Sprint(map[string]interlock.Token{"a": token(1), "b": token(7)}); got != want {
			t.Errorf("shared %s, want %s", got, want)
		}
	}
	entered := testbed.Later(t, bound, func() error {
		return w.Try(context.Background(), func(ctx context.Context, db driver.SQL) error {
			return w.table.Enter(ctx, db, "a", token(2), "")
		})
	})
	w.blocked(t, 1)
	ok(t, first.Commit(t.Context()))
	w.blocked(t, 1)
	ok(t, second.Commit(t.Context()))
	ok(t, entered())
	raising := w.Begun(t, driver.SessionIsolation)
	ok(t, w.table.Enter(t.Context(), raising, "c", token(8), ""))
	now, err := w.table.ShareNow(t.Context(), w.Begun(t, driver.SessionIsolation), "a", "c")
	if ok(t, err); fmt.Sprint(now) != fmt.Sprint(map[string]interlock.Token{"a": token(2)}) {
		t.Errorf("shared %v while c is being raised", now)
	}
	ok(t, raising.Rollback(t.Context()))
	if got := share(w.Begun(t, driver.SessionIsolation)); got["a"] != token(2) {
		t.Errorf("shared %v after %d has entered", got, token(2))
	}
	if _, err := w.table.Share(t.Context(), w.Begun(t, driver.SessionIsolation), "a", ""); interlock.Kind(err) != interlock.Bug {
		t.Errorf("a resource without a name: %v", err)
	}
}

func testColumn(t *testing.T, w world) {
	mark := w.quote("Mark")
	w.Exec(t, `create table seat (no int primary key, `+mark+` bigint not null default 0)`, `insert into seat (no) values (12), (0)`,
		`create table part (id uuid primary key, mark bigint)`, `insert into part (id) values ('00000000-0000-0000-0000-000000000001')`)
	schema := "public"
	if w.snapshots {
		schema = w.text(t, `select database()`)
	}
	for resource, c := range map[string]fence.Column{
		"12":                                   {Table: schema + ".seat", Key: "no", Column: "Mark"},
		"00000000-0000-0000-0000-000000000001": {Table: "part", Key: "id", Column: "mark"},
	} {
		ok(t, w.enter(t, c, resource, token(5)))
		wantStale(t, w.enter(t, c, resource, token(4)), token(5), token(4))
		ok(t, w.enter(t, c, resource, token(6)))
	}
	for _, other := range []string{"twelve", "12x", " 12", "12.0"} {
		if err := w.enter(t, fence.Column{Table: "seat", Key: "no", Column: "Mark"}, other, token(9)); other != " 12" || w.snapshots {
			wantKind(t, err, interlock.Definite, nil) // PostgreSQL reads over the space
		}
	}
	if w.snapshots { // its texts are equal regardless of case, unless a collation distinguishes them
		wantKind(t, w.enter(t, column, "ALICE", token(1)), interlock.Definite, nil)
	}
	wantKind(t, w.enter(t, fence.Column{Table: "seat", Key: "no", Column: "absent"}, "12", token(1)), interlock.Definite, nil)
	for _, c := range []fence.Column{{}, {Table: "seat"}, {Table: "seat", Key: "no"}, {Key: "no", Column: "Mark"}} {
		wantKind(t, w.enter(t, c, "12", token(1)), interlock.Bug, interlock.ErrName)
	}
}

// book inserts a booking of a seat if there is none yet.
func book(who string) body {
	return func(ctx context.Context, db driver.SQL) error {
		_, err := db.Exec(ctx, `insert into booking (seat, who) values ('12A', '`+who+`')`)
		return err
	}
}

// testColumnInserts demonstrates a documented gap, which a table does not have.
func testColumnInserts(t *testing.T, w world) {
	w.Exec(t, `create table booking (seat varchar(9), who varchar(9), fence bigint)`)
	byColumn := fence.Column{Table: "booking", Key: "seat", Column: "fence"}

	var missing *fence.NoRowError
	err := w.tx(t.Context(), byColumn, grant(2, bound), "12A", book("new"))
	if wantKind(t, err, interlock.Definite, nil); !errors.As(err, &missing) || missing.Resource != "12A" {
		t.Fatalf("entered a row that does not exist: %v", err)
	}
	// An inserted row without a mark does not reject a stale holder.
	w.Do(t, book("new"))
	w.Do(t, book("old"))
	if got := w.text(t, `select concat(count(*)) from booking`); got != "2" {
		t.Errorf("%s bookings: the hole is closed, and the documentation is wrong", got)
	}

	w.Exec(t, `delete from booking`)
	ok(t, w.tx(t.Context(), w.table, grant(2, bound), "12A", book("new")))
	wantStale(t, w.tx(t.Context(), w.table, grant(1, bound), "12A", book("old")), token(2), token(1))
	if got := w.text(t, `select who from booking`); got != "new" {
		t.Errorf("booked by %s", got)
	}
}

// testColumnOtherRows demonstrates that a claim on several rows must enter each.
func testColumnOtherRows(t *testing.T, w world) {
	transfer := func(ctx context.Context, db driver.SQL) error {
		_, err := db.Exec(ctx, `update account set balance = balance + case id when 'alice' then -10 else 10 end`)
		return err
	}
	ok(t, w.tx(t.Context(), column, grant(2, bound), "alice", transfer))
	// Stale, it enters by the other row, and writes both.
	ok(t, w.tx(t.Context(), column, grant(1, bound), "bob", transfer))
	if got := w.text(t, `select concat(balance) from account where id = 'alice'`); got != "80" {
		t.Errorf("balance %s: the hole is closed, and the documentation is wrong", got)
	}
	// A table's resource stands for both rows.
	ok(t, w.tx(t.Context(), w.table, grant(2, bound), "alice and bob", transfer))
	wantStale(t, w.tx(t.Context(), w.table, grant(1, bound), "alice and bob", transfer), token(2), token(1))
}

func testColumnRows(t *testing.T, w world) {
	w.Exec(t, `create table twice (k varchar(9), mark bigint)`, `insert into twice (k) values ('k'), ('k')`)
	c := fence.Column{Table: "twice", Key: "k", Column: "mark"}
	wantKind(t, w.enter(t, c, "k", token(2)), interlock.Bug, nil)
	// A row that is inserted again has no mark.
	ok(t, w.enter(t, column, "alice", token(9)))
	w.Exec(t, `delete from account where id = 'alice'`, `insert into account (id, balance) values ('alice', 1)`)
	ok(t, w.enter(t, column, "alice", token(1)))
}
