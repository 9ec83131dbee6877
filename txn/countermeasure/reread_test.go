package countermeasure_test

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// testReread: only a caller that has seen the last version may write, once.
func testReread(w world) {
	unchanged := func(seen int64) error {
		return w.in(func(ctx context.Context, db driver.SQL) error { return versioned.Unchanged(ctx, db, "a", seen) })
	}
	changed := func(seen int64) {
		w.Helper()
		if e := wants[*countermeasure.ChangedError](w, unchanged(seen), interlock.Definite); e.Key != "a" || e.Seen != seen || e.Table != "account" {
			w.Errorf("%+v", e)
		}
	}
	ok(w, unchanged(0)) // NULL
	changed(0)
	ok(w, unchanged(1))
	changed(0)
	changed(1)
	// A write by version.Update raises the same column.
	updater, err := version.NewUpdater(nil)
	ok(w, err)
	rows := version.Rows[int64]{Table: "account", Key: "id", Version: "version", Columns: []string{"balance"},
		Fields: func(balance *int64) []any { return []any{balance} }}
	ok(w, version.Update(w.Context(), updater, w.BeginnerAt, rows, "a", func(_ context.Context, balance *int64) error { *balance++; return nil }))
	changed(2)
	ok(w, unchanged(3))
	if v := databases.One[int64](w.T, w.DB, `select version from account where id = 'a'`); v != 4 {
		w.Errorf("version %d", v)
	}
	err = w.in(func(ctx context.Context, db driver.SQL) error { return versioned.Unchanged(ctx, db, "nobody", 1) })
	var missing *version.NoRowError
	if !errors.As(err, &missing) {
		w.Errorf("%v", err)
	}
	wantKind(w, unchanged(-1), interlock.Bug, nil)
	wantKind(w, versioned.Unchanged(w.Context(), nil, "a", 1), interlock.Bug, nil)
}

// testRereadOfAnotherRow: a row that was deleted and created again is not the one that was read,
// although its version is lower.
func testRereadOfAnotherRow(w world) {
	w.Exec(w.T, `update account set version = 5 where id = 'a'`)
	w.Exec(w.T, `delete from account where id = 'a'`)
	for _, version := range []string{"null", "1", "4", "6"} {
		w.Exec(w.T, `insert into account (id, balance, version) values ('a', 1, `+version+`)`)
		err := w.in(func(ctx context.Context, db driver.SQL) error { return versioned.Unchanged(ctx, db, "a", 5) })
		wants[*countermeasure.ChangedError](w, err, interlock.Definite)
		if n := databases.One[int64](w.T, w.DB, `select count(*) from account where id = 'a' and (version is null or version = `+version+`)`); n != 1 {
			w.Errorf("version %s was raised", version)
		}
		w.Exec(w.T, `delete from account where id = 'a'`)
	}
}

// testRereadWaits: the second caller waits for the first one, and then sees whether the row has
// changed.
func testRereadWaits(w world) {
	for _, commit := range []bool{false, true} {
		first := w.Begun(w.T, driver.SessionIsolation)
		ok(w, versioned.Unchanged(w.Context(), first, "a", 0))
		second := testbed.Later(w, bound, func() error {
			return w.in(func(ctx context.Context, db driver.SQL) error { return versioned.Unchanged(ctx, db, "a", 0) })
		})
		w.blocked("the second one")
		if commit {
			ok(w, first.Commit(w.Context()))
			wants[*countermeasure.ChangedError](w, second(), interlock.Definite)
			return
		}
		ok(w, first.Rollback(w.Context()))
		ok(w, second())
		w.Exec(w.T, `update account set version = null`)
	}
}
