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

// TestSurroundings is about what users do around the calls.
func TestSurroundings(t *testing.T) {
	t.Parallel()
	eachWorld(t, map[string]func(*testing.T, world){
		"an early snapshot sells nothing twice":   testEarlySnapshot,
		"what expired unseen is no refusal":       testExpiredUnseen,
		"an open transaction is waited for":       testWaits,
		"a hold in the same transaction is known": testSameTransaction,
	})
}

// testEarlySnapshot has transactions that read, are overtaken, and then hold the units
// that they read.
func testEarlySnapshot(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.RepeatableRead, driver.Serializable} {
		item, old := fmt.Sprint("seat", i), fmt.Sprint("old", i)
		w.set(t, item, 1)
		ok(t, w.hold(old, time.Hour, one(item)))
		w.lapse(t, old, 2*time.Hour)
		tx := w.Begun(t, level)
		if w.Dialect == driver.MariaDB && level == driver.Serializable {
			_, err := databases.Value[int64](t.Context(), tx, `select count(*) from interlock_stock_operation`)
			ok(t, err) // any other look would lock what it looks at
		} else if seen, err := w.Show(t.Context(), tx, item); err != nil || seen.Available() != 1 {
			t.Fatalf("%+v, %v", seen, err)
		}
		ok(t, w.hold(fmt.Sprint("new", i), time.Hour, one(item)))
		err := w.Hold(t.Context(), tx, fmt.Sprint("late", i), time.Hour, one(item))
		var short *stock.ShortError
		if !errors.As(err, &short) && interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%v: %v (%v)", level, err, interlock.Kind(err))
		}
		ok(t, tx.Rollback(t.Context()))
		w.has(t, item, 1, 1, 0)
	}
}

// testExpiredUnseen has a hold that was made, and expired, after a transaction's
// snapshot was taken. It does not get the answer that there is nothing: it must run again.
func testExpiredUnseen(t *testing.T, w world) {
	w.set(t, "a", 1)
	tx := w.Begun(t, driver.RepeatableRead)
	if seen, err := w.Show(t.Context(), tx, "a"); err != nil || seen.Available() != 1 {
		t.Fatalf("%+v, %v", seen, err)
	}
	ok(t, w.hold("unseen", time.Hour, one("a")))
	w.lapse(t, "unseen", 2*time.Hour)
	wantKind(t, w.Hold(t.Context(), tx, "late", time.Hour, one("a")), interlock.Retryable, nil)
	ok(t, tx.Rollback(t.Context()))
	ok(t, w.hold("late", time.Hour, one("a")))
}

// testWaits: uncommitted units are neither available nor gone.
func testWaits(t *testing.T, w world) {
	w.set(t, "a", 1)
	for i, end := range []func(driver.Tx[driver.SQL]) error{
		func(tx driver.Tx[driver.SQL]) error { return tx.Rollback(t.Context()) },
		func(tx driver.Tx[driver.SQL]) error { return tx.Commit(t.Context()) },
	} {
		tx := w.Begun(t, driver.SessionIsolation)
		ok(t, w.Hold(t.Context(), tx, fmt.Sprint("first", i), time.Hour, one("a")))
		second := fmt.Sprint("second", i)
		done := make(chan error, 1)
		go func() { done <- w.hold(second, time.Hour, one("a")) }()
		testbed.Eventually(t, "the second waits", bound, func() bool { return w.Waiting(t) == 1 })
		ok(t, end(tx))
		err := <-done
		if i == 0 {
			ok(t, err)
			ok(t, w.cancel(second))
			continue
		}
		wantShort(t, err, "a", 1, 0)
	}
}

func testSameTransaction(t *testing.T, w world) {
	w.set(t, "a", 2)
	ok(t, w.in(func(ctx context.Context, db driver.SQL) error {
		ok(t, w.Hold(ctx, db, "r", time.Hour, one("a")))
		ok(t, w.Hold(ctx, db, "r", time.Hour, one("a")))
		wantReused(t, w.Hold(ctx, db, "r", time.Hour, stock.Line{Item: "a", N: 2}), "r")
		ok(t, w.Confirm(ctx, db, "r"))
		ok(t, w.Hold(ctx, db, "s", time.Hour, one("a")))
		return w.Cancel(ctx, db, "s")
	}))
	w.has(t, "a", 2, 0, 1)
}
