package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// transfer moves money between three stores, in a process with a fault. It returns the
// number of requests, and the error that its caller got.
func transfer(w *world, pr *process, o *Options) (requests int, learned error) {
	oracle := w.open(nil, o)
	db := w.open(pr, o)
	db.oracle = oracle.oracle
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	learned = db.Update(ctx, func(tx *Tx) error {
		return errors.Join(add(tx, "x/a", -30), add(tx, "y/b", 10), add(tx, "c", 10), add(tx, "d", 10))
	})
	w.close(db)
	return pr.gets + pr.swaps + pr.scans, learned
}

// mustBeWhole fails unless the transfer took effect completely or not at all, as its
// caller learned, and no lock is left.
func (w *world) mustBeWhole(learned error) {
	w.Helper()
	time.Sleep(2 * DefaultTTL)
	db := w.open(nil, nil)
	got := w.values(db, "x/a", "y/b", "c", "d")
	moved := slices.Equal(got, []int{70, 10, 10, 10})
	switch {
	case !moved && !slices.Equal(got, []int{100, 0, 0, 0}):
		w.Errorf("half of it was done: %v", got)
	case learned == nil && !moved:
		w.Errorf("it was acknowledged, and is %v", got)
	case learned != nil && interlock.Kind(learned) != interlock.Uncertain && moved:
		w.Errorf("it took place, and the caller learned: %v", learned)
	}
	if _, err := db.Collect(w.Context(), 0); err != nil {
		w.Error(err)
	}
	w.clean(db)
}

// opening is the number of requests that open the stores.
const opening = 3

// TestEveryCrash: the process dies before or after each of its requests, or a request or
// its reply is lost. Another process finds all or nothing.
func TestEveryCrash(t *testing.T) {
	for _, serializable := range []bool{false, true} {
		o := &Options{Serializable: serializable}
		run := func(pr *process) (n int, learned error) {
			virtual.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.set(w.open(nil, nil), map[string]int{"x/a": 100})
				n, learned = transfer(w, pr, o)
				w.mustBeWhole(learned)
			})
			return n, learned
		}
		points, _ := run(&process{})
		for f := crashBefore; f <= lateWrite; f++ {
			for at := opening + 1; at <= points; at++ {
				_, learned := run(&process{at: at, fault: f})
				if learned != nil && f >= lostRequest {
					t.Errorf("one lost request is not repeated: %v", learned)
				}
				if t.Failed() {
					t.Fatalf("fault %d of request %d, serializable %v", f, at, serializable)
				}
			}
		}
		if points -= opening; points < 10 {
			t.Errorf("only %d requests", points)
		}
	}
}

// TestEveryCrashInOnePhase: a fault of each request of a transaction that commits in one phase. The
// write takes place or not, as its caller learned, and not after later timestamps were issued.
func TestEveryCrashInOnePhase(t *testing.T) {
	run := func(f fault, at int, cancels bool) (swaps, requests int) {
		virtual.Test(t, func(t *testing.T) {
			w := newWorld(t)
			pr := &process{}
			db := w.openAlone(pr, nil)
			w.set(db, map[string]int{"a": 100})
			pr.gets, pr.swaps, pr.at, pr.fault = 0, 0, at, f
			ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
			defer cancel()
			if cancels {
				pr.onSwap = func(*path) { cancel() }
			}
			learned := db.Update(ctx, move("a", "b", 30))
			swaps, requests = pr.swaps, pr.gets+pr.swaps
			if learned != nil && (f == lostReply || f >= lostRequest && !cancels) {
				t.Errorf("one lost request is not repeated: %v", learned)
			}
			pr.dead = false
			begun, err := db.Begin(w.Context())
			testbed.OK(t, err)
			saw, err := number(begun, "b")
			testbed.OK(t, err)
			if time.Sleep(2 * lateness); interlock.Kind(learned) != interlock.Uncertain && learned == nil != (saw == 30) {
				t.Errorf("it moved %d, and the caller learned: %v", saw, learned)
			}
			begun.cells["b"].fresh = false
			if again, err := number(begun, "b"); again != saw || err != nil {
				t.Errorf("a snapshot changed from %d to %d: %v", saw, again, err)
			}
			if got := w.values(db, "a", "b"); got[0]+got[1] != 100 || got[1] < saw {
				t.Errorf("afterwards: %v", got)
			}
			w.clean(db)
		})
		return swaps, requests
	}
	swaps, requests := run(none, 0, false)
	if swaps != 1 || requests < 4 {
		t.Fatalf("it took %d requests, and %d writes", requests, swaps)
	}
	for f := none; f <= lateWrite; f++ {
		for at := 1; at <= requests; at++ {
			for _, cancels := range []bool{false, true} {
				if run(f, at, cancels); t.Failed() {
					t.Fatalf("fault %d of request %d, cancels: %v", f, at, cancels)
				}
			}
		}
	}
}

// TestCollectedInOnePhase: the reply of a commit is lost, and its version is collected before its
// caller can ask. The outcome is unknown.
func TestCollectedInOnePhase(t *testing.T) {
	inWorld(t, func(w *world) {
		pr := &process{fault: lostReply}
		db, other := w.openAlone(pr, nil), w.open(nil, nil)
		w.set(db, map[string]int{"a": 100})
		tx, err := db.Begin(w.Context())
		testbed.OK(t, errors.Join(err, tx.Put("a", nil)))
		pr.gets, pr.swaps, pr.at = 0, 0, 2 // it reads the record, and writes it
		pr.onSwap = func(*path) {
			if pr.swaps != 1 { // it takes over after the lost reply
				return
			}
			time.Sleep(time.Second)
			w.set(other, map[string]int{"b": 1})
			testbed.OK(t, other.Update(w.Context(), func(tx *Tx) error { return tx.Put("a", nil) }))
			time.Sleep(time.Second)
			_, err := other.Collect(w.Context(), 0)
			testbed.OK(t, err)
		}
		testbed.WantKind(t, tx.Commit(w.Context()), interlock.Uncertain, errCollected)
	})
}

// TestEveryCrashOfTheRescue: a second process dies at each request while it resolves the
// locks of the first one.
func TestEveryCrashOfTheRescue(t *testing.T) {
	run := func(first, second *process) (n, m int) {
		virtual.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.set(w.open(nil, nil), map[string]int{"x/a": 100})
			var learned error
			n, learned = transfer(w, first, nil)
			time.Sleep(2 * DefaultTTL)
			rescue := w.open(second, nil)
			_ = rescue.View(w.Context(), func(tx *Tx) error {
				_, err := tx.Scan(w.Context(), "", "", 10)
				return err
			})
			_, _ = rescue.Collect(w.Context(), 0)
			m = second.gets + second.swaps + second.scans
			w.mustBeWhole(learned)
		})
		return n, m
	}
	runs := 0
	points, _ := run(&process{}, &process{})
	for first := opening + 1; first <= points; first++ {
		_, rescued := run(&process{at: first, fault: crashAfter}, &process{})
		for second := opening + 1; second <= rescued; second++ {
			for _, f := range []fault{crashBefore, crashAfter} {
				run(&process{at: first, fault: crashAfter}, &process{at: second, fault: f})
				if runs++; t.Failed() {
					t.Fatalf("first crash after request %d, second one of kind %d at %d", first, f, second)
				}
			}
		}
	}
	if runs < 100 {
		t.Errorf("only %d runs", runs)
	}
}

// TestSlowWritersKeepTheirLocks: a commit that takes longer than the TTL renews its locks.
// A writer that meets them does not roll it back.
func TestSlowWritersKeepTheirLocks(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(w.open(nil, nil), map[string]int{"x/a": 100})
		pr := &process{}
		db, other, held := w.open(pr, nil), w.open(nil, nil), false
		pr.onSwap = func(p *path) {
			if p.KeyValues != driver.KeyValues(w.y) || held {
				return
			}
			held = true // the prewrite of y takes ten seconds; that of x is done
			for range 10 {
				time.Sleep(time.Second)
				ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
				err := other.Update(ctx, func(tx *Tx) error { return tx.Put("x/a", nil) })
				cancel()
				if !errors.Is(err, ErrConflict) && interlock.Kind(err) != interlock.Retryable {
					w.Errorf("another writer: %v", err)
				}
			}
		}
		testbed.OK(t, db.Update(w.Context(), move("x/a", "y/b", 30)))
		w.close(db)
		if got := w.values(other, "x/a", "y/b"); !held || fmt.Sprint(got) != "[70 30]" {
			t.Errorf("afterwards: %v", got)
		}
	})
}

// TestCollectKeepsWhatIsDecided: the process dies after it has committed the primary. The
// collection commits the secondary before it drops the decision.
func TestCollectKeepsWhatIsDecided(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(w.open(nil, nil), map[string]int{"x/a": 100})
		pr, writes := &process{}, 0
		db, other := w.open(pr, nil), w.open(nil, nil)
		pr.onSwap = func(p *path) {
			if p.KeyValues != driver.KeyValues(w.y) {
				return
			}
			if writes++; writes == 2 { // the commit of the secondary
				pr.mu.Lock()
				pr.dead = true
				pr.mu.Unlock()
			}
		}
		testbed.OK(t, db.Update(w.Context(), move("x/a", "y/b", 30)))
		w.close(db)
		time.Sleep(time.Minute)
		w.set(other, map[string]int{"x/a": 1})
		if _, err := other.Collect(w.Context(), 0); err != nil {
			t.Fatal(err)
		}
		w.clean(other)
		if got := w.values(other, "x/a", "y/b"); got[0] != 71 || got[1] != 30 {
			t.Errorf("afterwards: %v", got)
		}
	})
}

// TestRefusedAtThePrimary: a transaction that locked a secondary and was refused at its
// primary leaves nothing there. Readers of the secondary do not wait until its lock expires.
func TestRefusedAtThePrimary(t *testing.T) {
	inWorld(t, func(w *world) {
		pr := &process{}
		refused, db := w.open(pr, nil), w.open(nil, nil)
		w.set(db, map[string]int{"x/a": 100, "y/b": 1})
		var began time.Time
		read := make(chan []int)
		pr.onSwap = func(p *path) {
			if p.KeyValues == driver.KeyValues(w.y) || !began.IsZero() {
				return
			}
			time.Sleep(time.Second / 2) // the secondary is locked
			w.set(db, map[string]int{"x/a": 100})
			began = time.Now()
			go func() { read <- w.values(db, "y/b") }()
			time.Sleep(time.Millisecond) // it has read the primary
		}
		tx, err := refused.Begin(w.Context())
		testbed.OK(t, err)
		testbed.OK(t, move("x/a", "y/b", 30)(tx))
		if err := tx.Commit(w.Context()); !errors.Is(err, ErrConflict) {
			t.Errorf("commit: %v", err)
		}
		if got := <-read; got[0] != 1 || time.Since(began) > time.Second {
			t.Errorf("it read %v after %v", got, time.Since(began))
		}
		w.clean(db)
	})
}
