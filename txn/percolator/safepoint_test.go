package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// TestSnapshotHoldsTheSafePointBack for as long as it runs, and no longer, also in a process
// with other prefixes of the same stores.
func TestSnapshotHoldsTheSafePointBack(t *testing.T) {
	inWorld(t, func(w *world) {
		oracle, err := timestamp.NewOracle(w.oracle, "oracle", nil)
		testbed.OK(t, err)
		open := func(shortest string, store driver.KeyValues) *DB {
			db, err := Open(w.Context(), oracle, Stores{"x/": w.x, "y/": w.y, shortest: store}, nil)
			testbed.OK(t, err)
			return db
		}
		ctx, db, other := w.Context(), open("a", w.x), open("b", w.y)
		w.set(db, map[string]int{"x/a": 1, "y/b": 1})
		var start Timestamp
		collect := func() Timestamp {
			t.Helper()
			safe, err := other.Collect(ctx, 0)
			testbed.OK(t, err)
			return safe
		}
		err = db.Snapshot(ctx, func(tx *Tx) error {
			start = tx.Start()
			for range 3 {
				w.set(db, map[string]int{"x/a": 1})
				if err := db.Update(ctx, func(tx *Tx) error { return tx.Delete("y/b") }); err != nil {
					return err
				}
				time.Sleep(MaxAge) // many leases of the snapshot, and the age of deleted records
				if safe := collect(); safe > start {
					t.Fatalf("the safe point %v passed the snapshot of %v", safe.Time(), start.Time())
				}
			}
			a, errA := number(tx, "x/a")
			b, errB := number(tx, "y/b")
			if a != 1 || b != 1 {
				t.Errorf("the snapshot reads %d and %d", a, b)
			}
			return errors.Join(errA, errB)
		})
		if err != nil {
			t.Error(err)
		}
		if safe := collect(); safe <= start {
			t.Errorf("the snapshot has ended, and the safe point is %v", safe.Time())
		}
	})
}

// TestDeadSnapshotIsPassed once its lease has expired.
func TestDeadSnapshotIsPassed(t *testing.T) {
	inWorld(t, func(w *world) {
		pr := &process{}
		dying, db := w.open(pr, nil), w.open(nil, nil)
		_ = dying.Snapshot(w.Context(), func(tx *Tx) error {
			pr.mu.Lock()
			pr.dead = true
			pr.mu.Unlock()
			for wait, passed := range []bool{false, true} {
				time.Sleep(time.Duration(wait) * 2 * holdTTL)
				if safe, err := db.Collect(w.Context(), 0); err != nil || (safe > tx.Start()) != passed {
					t.Errorf("the safe point %v has passed %v, %v", safe.Time(), tx.Start().Time(), err)
				}
			}
			return nil
		})
	})
}

// TestSnapshotBelowTheSafePoint: if the safe point passes a snapshot before it is registered,
// the snapshot begins again. An old transaction is refused even if the record is gone.
func TestSnapshotBelowTheSafePoint(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db := w.Context(), w.open(nil, nil)
		w.set(db, map[string]int{"x/a": 1})
		pr := &process{}
		late, safe := w.open(pr, nil), Timestamp(0)
		pr.onSwap = func(*path) {
			pr.onSwap = nil
			time.Sleep(time.Second)
			var err error
			if safe, err = db.Collect(ctx, 0); err != nil {
				t.Error(err)
			}
		}
		err := late.Snapshot(ctx, func(tx *Tx) error {
			if safe == 0 || tx.Start() < safe {
				t.Errorf("it began at %d, the safe point is %d", tx.Start(), safe)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}

		old, err := db.Begin(ctx)
		testbed.OK(t, err)
		testbed.OK(t, db.Update(ctx, func(tx *Tx) error { return tx.Delete("x/a") }))
		for range 2 {
			time.Sleep(MaxAge + time.Minute)
			if _, err := db.Collect(ctx, 0); err != nil {
				t.Fatal(err)
			}
		}
		if kvs, err := w.x.Get(ctx, dataPrefix+"x/a"); err != nil || kvs[0].Revision != 0 {
			t.Fatalf("the record of the deleted key is still there: %v, %v", kvs, err)
		}
		_, getErr := number(old, "x/a")
		_, scanErr := old.Scan(ctx, "x/", "x0", 10)
		for _, err := range []error{getErr, scanErr} {
			if !errors.Is(err, ErrTooOld) || interlock.Kind(err) != interlock.Retryable {
				t.Errorf("a snapshot in which the key had a value: %v", err)
			}
		}
	})
}

// TestClockThatLeaps: a new leader of the oracle whose clock is ahead by almost half an hour ends the lease of
// a snapshot too early, and lets a collection delete the record of a removed key too early. Reads of
// old snapshots get ErrTooOld, never a wrong value.
func TestClockThatLeaps(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db, other := w.Context(), w.open(nil, nil), w.open(nil, nil)
		w.set(db, map[string]int{"x/a": 1, "x/b": 1})
		collect := func() Timestamp {
			safe, err := other.Collect(ctx, 0)
			testbed.OK(t, err)
			return safe
		}
		leap := func() {
			now, err := other.now(ctx)
			testbed.OK(t, err)
			kvs, err := w.oracle.Get(ctx, "oracle")
			testbed.OK(t, err)
			record := fmt.Sprintf(`{"format":1,"epoch":%d,"bound":%d}`, now, now.Add(MaxAge/2-time.Second+timestamp.DefaultAhead))
			_, err = w.oracle.Swap(ctx, driver.Swap{Key: "oracle", Revision: kvs[0].Revision, Value: []byte(record)})
			testbed.OK(t, err)
			_, err = other.now(ctx) // it leads
			testbed.OK(t, err)
		}
		old, err := db.Begin(ctx)
		testbed.OK(t, err)
		runs := 0
		err = db.Snapshot(ctx, func(tx *Tx) error {
			if runs++; runs == 2 {
				return nil
			}
			testbed.OK(t, other.Update(ctx, func(tx *Tx) error { return errors.Join(tx.Delete("x/a"), add(tx, "x/b", 1)) }))
			leap()
			if safe := collect(); safe <= tx.Start() {
				t.Errorf("the safe point %v did not pass the snapshot", safe.Time())
			}
			_, err := number(tx, "x/b")
			return err
		})
		if err != nil || runs != 2 {
			t.Errorf("after %d runs: %v", runs, err)
		}
		leap()
		time.Sleep(MaxAge/2 - 1500*time.Millisecond)
		collect()
		if kvs, err := w.x.Get(ctx, dataPrefix+"x/a"); err != nil || kvs[0].Revision > 0 {
			t.Errorf("the record of the removed key is there: %v", err)
		}
		if _, err := number(old, "x/a"); !errors.Is(err, ErrTooOld) {
			t.Errorf("an old transaction reads the removed key: %v", err)
		}
	})
}

// TestConcurrentSafePoints: no change of one process overwrites that of another.
func TestConcurrentSafePoints(t *testing.T) {
	inWorld(t, func(w *world) {
		const many = 20
		db, began, end := w.open(nil, nil), make(chan Timestamp, many), make(chan struct{})
		errs := make(chan error, many)
		for range many {
			go func() {
				errs <- db.Snapshot(context.Background(), func(tx *Tx) error { began <- tx.Start(); <-end; return nil })
			}()
		}
		first := <-began
		for range many - 1 {
			first = min(first, <-began)
		}
		time.Sleep(5 * time.Second)
		if safe, err := db.Collect(w.Context(), 0); safe != first || err != nil {
			t.Errorf("the safe point is %d, the first snapshot %d: %v", safe, first, err)
		}
		close(end)
		for range many {
			testbed.OK(t, <-errs)
		}
		if s, _, err := db.safePoint(w.Context()); err != nil || len(s.Held) > 0 {
			t.Errorf("left: %v, %v", s.Held, err)
		}
	})
}
