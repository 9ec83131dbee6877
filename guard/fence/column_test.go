package fence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
)

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
