package transact_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/transact"
)

// TestWhole requires that failed work cannot be committed by any caller; a failure
// before begin leaves the transaction usable.
func TestWhole(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table done (id bigint primary key)`)
		mine := errors.New("mine")
		for i, c := range []struct {
			name string
			work func(ctx context.Context, gone func(), begin func()) error
			done bool
		}{
			{"a good end", func(_ context.Context, _, begin func()) error { begin(); return nil }, true},
			{"not begun", func(context.Context, func(), func()) error { return mine }, true},
			{"failed", func(_ context.Context, _, begin func()) error { begin(); return mine }, false},
			{"failed when the caller had gone", func(ctx context.Context, gone, begin func()) error { begin(); gone(); return ctx.Err() }, false},
			{"panicked", func(_ context.Context, _, begin func()) error { begin(); panic(mine) }, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				tx := db.Begun(t, driver.SessionIsolation)
				if _, err := tx.Exec(t.Context(), insert(i)); err != nil {
					t.Fatal(err)
				}
				ctx, gone := context.WithCancel(t.Context())
				defer gone()
				func() {
					defer func() {
						if got := recover(); (got != nil) != (c.name == "panicked") {
							t.Errorf("recovered %v", got)
						}
					}()
					err := transact.Whole(ctx, tx, "it failed", func(begin func()) error { return c.work(ctx, gone, begin) })
					if (err == nil) != (c.name == "a good end") {
						t.Errorf("%v", err)
					}
				}()
				err := tx.Commit(t.Context())
				if (err == nil) != c.done || err != nil && interlock.Kind(err) != interlock.Definite {
					t.Errorf("commit: %v (%v)", err, interlock.Kind(err))
				}
				if n := databases.One[int64](t, db, count(i)); (n == 1) != c.done {
					t.Errorf("%d rows", n)
				}
			})
		}
	}, databases.All...)
}

// TestWholeBranch: failed work in a branch of XA, which the server does not roll back before its end, is not
// prepared.
func TestWholeBranch(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table done (id bigint primary key)`)
		pool, err := sql.Open("mysql", db.URL)
		testbed.OK(t, err)
		t.Cleanup(func() { pool.Close() })
		p, err := mysql.OpenParticipant(t.Context(), pool, "shop", nil)
		testbed.OK(t, err)
		t.Cleanup(p.Close)
		x := driver.XID{Transaction: "t", Branch: "b"}
		conn, branch, err := p.Begin(t.Context(), x)
		testbed.OK(t, err)
		t.Cleanup(func() { _ = errors.Join(branch.Abandon(context.Background()), p.Rollback(context.Background(), x)) })
		mine := errors.New("mine")
		err = transact.Whole(t.Context(), mysql.Session(conn), "it failed", func(begin func()) error {
			begin()
			_, err := conn.ExecContext(t.Context(), insert(1))
			return cmp.Or(err, mine)
		})
		if err != mine {
			t.Error(err)
		}
		if vote, err := branch.Prepare(t.Context()); vote != driver.VoteNo || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("vote %v, %v", vote, err)
		}
		if n := databases.One[int64](t, db, count(1)); n != 0 {
			t.Errorf("%d rows", n)
		}
	}, databases.Maria)
}
