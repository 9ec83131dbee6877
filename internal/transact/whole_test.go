package transact_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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
