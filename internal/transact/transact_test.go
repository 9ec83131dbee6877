package transact_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/transact"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestDo requires that work is committed only if it returned nil; and that its
// connection is always returned.
func TestDo(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table done (id bigint primary key)`)
		mine := errors.New("mine")
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		for i, c := range []struct {
			name   string
			ctx    context.Context
			work   func() error
			kind   interlock.ErrorKind
			target error
			done   bool
		}{
			{"committed", t.Context(), func() error { return nil }, 0, nil, true},
			{"its own error", t.Context(), func() error { return mine }, interlock.Uncertain, mine, false},
			{"nothing", t.Context(), func() error { return transact.ErrNothing }, 0, nil, false},
			{"a lost answer of a driver", t.Context(), func() error {
				return &interlock.Error{Op: "run statement", Driver: "x", Kind: interlock.Uncertain, Err: mine}
			}, interlock.Retryable, mine, false},
			{"the caller has gone", ctx, func() error { cancel(gone); return nil }, interlock.Definite, gone, false},
			{"gone before", ctx, func() error { return nil }, interlock.Definite, gone, false},
		} {
			err := transact.Do(c.ctx, db.Begin, "name", func(tx driver.Tx[driver.SQL]) error {
				if _, err := tx.Exec(context.WithoutCancel(c.ctx), insert(i)); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				return c.work()
			})
			if (err == nil) != (c.target == nil) || err != nil && (interlock.Kind(err) != c.kind || !errors.Is(err, c.target)) {
				t.Errorf("%s: %v (%v)", c.name, err, interlock.Kind(err))
			}
			if n := databases.One[int64](t, db, count(i)); (n == 1) != c.done {
				t.Errorf("%s: %d rows", c.name, n)
			}
		}
	}, databases.All...)
}

// TestPanicRollsBack requires that a panic of work propagates, and rolls back.
func TestPanicRollsBack(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table done (id bigint primary key)`)
		func() {
			defer func() {
				if got := recover(); got != "oops" {
					t.Errorf("recovered %v", got)
				}
			}()
			_ = transact.Do(t.Context(), transact.At(db, driver.ReadCommitted), "name", func(tx driver.Tx[driver.SQL]) error {
				if _, err := tx.Exec(t.Context(), insert(1)); err != nil {
					t.Error(err)
				}
				panic("oops")
			})
		}()
		db.Exec(t, insert(1)) // it waits for no lock
	}, databases.Pgx, databases.Maria)
}

func insert(i int) string { return "insert into done (id) values (" + string(rune('0'+i)) + ")" }

func count(i int) string { return "select count(*) from done where id = " + string(rune('0'+i)) }

// TestLostCommit requires that the outcome of an unanswered COMMIT is unknown.
func TestLostCommit(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := databases.Committing[driver.SQL]{BeginnerAt: open(t), Instead: func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
			testbed.OK(t, tx.Commit(ctx))
			return &interlock.Error{Op: "commit", Driver: "x", Kind: interlock.Uncertain, Err: errors.New("no answer")}
		}}
		err := transact.Do(t.Context(), db.Begin, "name", func(driver.Tx[driver.SQL]) error { return nil })
		var e *interlock.Error
		if !errors.Is(err, interlock.ErrUncertain) || !errors.As(err, &e) || e.Name != "name" {
			t.Errorf("%v", err)
		}
	}, databases.Pgx)
}
