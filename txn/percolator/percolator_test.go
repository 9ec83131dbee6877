package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) { test(newWorld(t)) })
}

func TestATransactionReadsItsSnapshotAndItsOwnWrites(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db := w.Context(), w.open(nil, nil)
		w.set(db, map[string]int{"a": 1, "x/b": 2, "y/c": 3})
		tx, err := db.Begin(ctx)
		testbed.OK(t, err)
		w.set(db, map[string]int{"a": 10, "x/b": 10, "x/new": 10})
		testbed.OK(t, errors.Join(tx.Put("z", []byte("own")), tx.Delete("y/c")))
		pairs, err := tx.Scan(ctx, "", "", 10)
		var keys []string
		for _, p := range pairs {
			keys = append(keys, p.Key)
		}
		if err != nil || !slices.Equal(keys, []string{"a", "x/b", "z"}) {
			t.Errorf("scan: %v, %v", keys, err)
		}
		if pairs, err := tx.Scan(ctx, "a\x00", "y", 1); err != nil || len(pairs) != 1 || pairs[0].Key != "x/b" {
			t.Errorf("scan of one: %v, %v", pairs, err)
		}
		if n, err := number(tx, "a"); n != 1 || err != nil {
			t.Errorf("a is %d, %v", n, err)
		}
		if _, found, err := tx.Get(ctx, "y/c"); found || err != nil {
			t.Errorf("a deleted key is found: %v", err)
		}
		testbed.OK(t, tx.Commit(ctx))
		testbed.WantKind(t, tx.Commit(ctx), interlock.Bug, ErrDone)
		if _, _, err := tx.Get(ctx, "a"); !errors.Is(err, ErrDone) {
			t.Errorf("get after the commit: %v", err)
		}
		w.close(db)
		if got := w.values(w.open(nil, nil), "a", "x/b", "y/c", "x/new"); !slices.Equal(got, []int{11, 12, 0, 10}) {
			t.Errorf("afterwards: %v", got)
		}
		w.clean(db)
	})
}

// TestARefusedTransactionWritesNothing: a batch is locked completely or not at all.
func TestARefusedTransactionWritesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		pr := &process{}
		db, other := w.open(pr, nil), w.open(nil, nil)
		tx, err := db.Begin(w.Context())
		testbed.OK(t, err)
		testbed.OK(t, errors.Join(add(tx, "a", 1), add(tx, "b", 1)))
		w.set(other, map[string]int{"a": 1})
		pr.swaps = 0 // one attempt with the records it had read
		if err := tx.Commit(w.Context()); !errors.Is(err, ErrConflict) || interlock.Kind(err) != interlock.Retryable || pr.swaps > 1 {
			t.Errorf("it wrote %d times: %v", pr.swaps, err)
		}
		began := time.Now()
		if w.set(db, map[string]int{"a": 1}); time.Since(began) > 0 {
			t.Errorf("the next transaction waited %v for its turn", time.Since(began))
		}
		w.clean(other)
	})
}

// TestReadersDoNotWaitForWriters: a reader that meets the lock of a living writer raises
// the writer's commit timestamp, without waiting.
func TestReadersDoNotWaitForWriters(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(w.open(nil, nil), map[string]int{"x/a": 100, "y/b": 0})
		reader, met := w.open(nil, nil), 0
		pr := &process{}
		db := w.open(pr, nil)
		pr.onSwap = func(p *path) {
			pr.mu.Lock()
			swaps := pr.swaps
			pr.mu.Unlock()
			if swaps != 2 { // both locks are there, and the commit is next
				return
			}
			met++
			before := time.Now()
			if got := w.values(reader, "y/b", "x/a"); got[0] != 0 || got[1] != 100 {
				t.Errorf("under the locks it read %v", got)
			}
			if waited := time.Since(before); waited > 0 {
				t.Errorf("the reader waited %v", waited)
			}
		}
		testbed.OK(t, db.Update(w.Context(), move("x/a", "y/b", 30)))
		if got := w.values(reader, "x/a", "y/b"); got[0] != 70 || got[1] != 30 || met != 1 {
			t.Errorf("afterwards it read %v, met %d", got, met)
		}
		w.close(db)
		w.clean(reader)
	})
}

// TestReadersDoNotStarveACommit: reads of its keys that are more frequent than its requests do not
// delay a commit for ever. A reader waits only if others have delayed the commit, and not for longer.
func TestReadersDoNotStarveACommit(t *testing.T) {
	for _, delay := range []time.Duration{10 * time.Millisecond, 300 * time.Millisecond} {
		for _, serializable := range []bool{false, true} {
			inWorld(t, func(w *world) {
				oracle, pr := w.newOracle(), &process{} // a change of its leader would stop its time for up to 3 s
				readers, slow := w.openAt(oracle, nil, nil), w.openAt(oracle, pr, &Options{Serializable: serializable, TTL: 10 * time.Second})
				w.set(readers, map[string]int{"x/a": 100, "y/b": 0, "c": 7})
				pr.delay = delay
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				defer cancel()
				var reading sync.WaitGroup
				ended, attempts, began := make(chan error, 1), 0, time.Now()
				go func() {
					ended <- slow.Update(ctx, func(tx *Tx) error {
						attempts++
						_, err := number(tx, "c")
						return errors.Join(err, move("x/a", "y/b", 30)(tx))
					})
				}()
				for len(ended) == 0 {
					time.Sleep(3 * time.Millisecond)
					reading.Go(func() {
						delayed := time.Since(began)
						if got := w.values(readers, "x/a", "y/b"); got[0]+got[1] != 100 {
							t.Errorf("a reader got %v", got)
						}
						if waited := time.Since(began) - delayed; waited > delayed+300*time.Millisecond {
							t.Errorf("a reader waited %v, after %v", waited, delayed)
						}
					})
				}
				took := time.Since(began)
				if err := <-ended; err != nil || attempts != 1 || took > 2*time.Second+30*delay {
					t.Errorf("serializable %v: after %v and %d attempts: %v", serializable, took, attempts, err)
				}
				reading.Wait()
				w.close(slow)
				if got := w.values(readers, "x/a", "y/b"); got[0] != 70 || got[1] != 30 {
					t.Errorf("afterwards: %v", got)
				}
			})
		}
	}
}

// TestCosts counts requests of transactions that read the keys that they write. A timestamp is
// one read of the oracle's store.
func TestCosts(t *testing.T) {
	tests := map[string]struct {
		run         func(tx *Tx) error
		options     Options
		alone       bool // it leads the oracle, which is in the same store
		gets, swaps int
		timestamps  int // 0 means 2
	}{
		"one key":                          {run: func(tx *Tx) error { return add(tx, "a", 1) }, gets: 1, swaps: 2},
		"one key, blind":                   {run: func(tx *Tx) error { return tx.Put("a", nil) }, gets: 1, swaps: 2},
		"two keys of one store":            {run: move("a", "b", 1), gets: 2, swaps: 2},
		"two keys of two stores":           {run: move("x/a", "y/b", 1), gets: 2, swaps: 4},
		"two keys, serializable":           {run: move("a", "b", 1), options: Options{Serializable: true}, gets: 3, swaps: 2},
		"two stores, serializable":         {run: move("x/a", "y/b", 1), options: Options{Serializable: true}, gets: 4, swaps: 4},
		"reads alone, serializable":        {run: func(tx *Tx) error { _, err := number(tx, "a"); return err }, options: Options{Serializable: true}, gets: 1, timestamps: 1},
		"sixty-four blind keys of a store": {run: func(tx *Tx) error { return many(tx, 64) }, gets: 1, swaps: 2},

		// Here the gets are also those of the timestamps.
		"one key, one phase":                {run: func(tx *Tx) error { return add(tx, "a", 1) }, alone: true, gets: 2, swaps: 1},
		"one key, blind, one phase":         {run: func(tx *Tx) error { return tx.Put("a", nil) }, alone: true, gets: 2, swaps: 1},
		"two keys, one phase":               {run: move("a", "b", 1), alone: true, gets: 3, swaps: 1},
		"two keys, serializable, one phase": {run: move("a", "b", 1), options: Options{Serializable: true}, alone: true, gets: 3, swaps: 1},
		"another key is read, serializable": {run: skewed, options: Options{Serializable: true}, alone: true, gets: 5, swaps: 2},
		"another key is read":               {run: skewed, alone: true, gets: 3, swaps: 1},
		"a range is read, serializable": {run: func(tx *Tx) error {
			_, err := tx.Scan(context.Background(), "b", "c", 1)
			return errors.Join(err, add(tx, "a", 1))
		}, options: Options{Serializable: true}, alone: true, gets: 4, swaps: 2},
		"a store more":                {run: move("a", "x/a", 1), alone: true, gets: 3, swaps: 2},
		"another store":               {run: func(tx *Tx) error { return add(tx, "x/a", 1) }, alone: true, gets: 2},
		"sixty-three keys, one phase": {run: func(tx *Tx) error { return many(tx, 63) }, alone: true, gets: 2, swaps: 1},
		"too many keys for one phase": {run: func(tx *Tx) error { return many(tx, 64) }, alone: true, gets: 3, swaps: 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				pr := &process{}
				clock := &process{}
				var db *DB
				if test.alone {
					db = w.openAlone(pr, &test.options)
				} else {
					db = w.open(pr, &test.options)
					db.oracle = w.lead(&path{w.oracle, clock})
				}
				pr.gets, pr.swaps, clock.gets, clock.swaps = 0, 0, 0, 0
				testbed.OK(t, db.Update(w.Context(), test.run))
				w.close(db)
				if synctest.Wait(); len(db.turns.keys) > 0 {
					t.Errorf("turns are left: %v", db.turns.keys)
				}
				if pr.gets != test.gets || pr.swaps != test.swaps {
					t.Errorf("it cost %d gets and %d swaps, want %d and %d", pr.gets, pr.swaps, test.gets, test.swaps)
				}
				if test.alone {
					return
				}
				if want := cmp.Or(test.timestamps, 2); clock.gets != want || clock.swaps > 0 {
					t.Errorf("its timestamps cost %d gets and %d swaps, want %d and none", clock.gets, clock.swaps, want)
				}
			})
		})
	}
}

// skewed reads one key and writes another one.
func skewed(tx *Tx) error {
	_, err := number(tx, "b")
	return errors.Join(err, add(tx, "a", 1))
}

// many writes n keys of one store.
func many(tx *Tx, n int) error {
	for i := range n {
		if err := tx.Put(fmt.Sprintf("many/%04d", i), []byte("v")); err != nil {
			return err
		}
	}
	return nil
}

// TestOldTransactions: a transaction of an hour ago does not commit, in one phase or in two.
func TestOldTransactions(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, db := range []*DB{w.openAlone(&process{}, nil), w.open(nil, nil)} {
			tx, err := db.Begin(w.Context())
			testbed.OK(t, err)
			time.Sleep(MaxAge)
			_, err = db.Begin(w.Context()) // the oracle knows the time
			testbed.OK(t, errors.Join(err, tx.Put("a", nil)))
			testbed.WantKind(t, tx.Commit(w.Context()), interlock.Retryable, ErrTooOld)
		}
	})
}

func TestLargeTransactions(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db := w.Context(), w.open(nil, nil)
		testbed.OK(t, db.Update(ctx, func(tx *Tx) error { return many(tx, 300) }))
		w.close(db)
		w.clean(db)
		err := db.View(ctx, func(tx *Tx) error {
			pairs, err := tx.Scan(ctx, "many/", "many0", 1000)
			if len(pairs) != 300 {
				t.Errorf("%d keys", len(pairs))
			}
			return err
		})
		testbed.OK(t, err)
		for name, write := range map[string]func(tx *Tx) error{
			"too many keys": func(tx *Tx) error { return many(tx, MaxKeys+1) },
			"a long value":  func(tx *Tx) error { return tx.Put("a", make([]byte, MaxValue+1)) },
		} {
			if err := db.Update(ctx, write); !errors.Is(err, ErrTooLarge) || interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, key := range []string{"", strings.Repeat("x", MaxKey+1), "\xff", "a\x00"} {
			if err := db.Update(ctx, func(tx *Tx) error { return tx.Put(key, nil) }); !errors.Is(err, interlock.ErrName) {
				t.Errorf("key %.10q: %v", key, err)
			}
		}
		if err := db.View(ctx, func(tx *Tx) error { _, err := tx.Scan(ctx, "", "", 0); return err }); interlock.Kind(err) != interlock.Bug {
			t.Errorf("a limit of 0: %v", err)
		}
	})
}

func TestCollect(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db := w.Context(), w.open(nil, nil)
		old, err := db.Begin(ctx)
		testbed.OK(t, err)
		for range 10 {
			w.set(db, map[string]int{"x/a": 1, "y/b": 1})
		}
		testbed.OK(t, db.Update(ctx, func(tx *Tx) error { return tx.Delete("y/b") }))
		w.close(db)
		time.Sleep(time.Minute)
		recent, err := db.Begin(ctx)
		testbed.OK(t, err)
		time.Sleep(time.Second)
		w.set(db, map[string]int{"x/a": 1})
		safe, err := db.Collect(ctx, 10*time.Second)
		if err != nil || safe <= old.Start() || safe >= recent.Start() {
			t.Fatalf("the safe point is %v, %v", safe.Time(), err)
		}
		if _, _, err := old.Get(ctx, "x/a"); !errors.Is(err, ErrTooOld) {
			t.Errorf("an old snapshot: %v", err)
		}
		if n, err := number(recent, "x/a"); n != 10 || err != nil {
			t.Errorf("a recent snapshot: %d, %v", n, err)
		}
		if got := w.values(db, "x/a", "y/b"); got[0] != 11 || got[1] != 0 {
			t.Errorf("afterwards: %v", got)
		}
		time.Sleep(MaxAge + time.Minute)
		for range 2 { // the first empties records, the second deletes emptied ones
			if _, err := db.Collect(ctx, 0); err != nil {
				t.Fatal(err)
			}
		}
		var keys []string
		_ = db.all(ctx, func(_ place, c *cell) error {
			keys = append(keys, c.key)
			if len(c.record.Writes) != 1 {
				t.Errorf("%q has %d versions", c.key, len(c.record.Writes))
			}
			return nil
		})
		if !slices.Equal(keys, []string{"x/a"}) {
			t.Errorf("these keys are left: %q", keys)
		}
		testbed.OK(t, recent.Put("x/a", nil))
		if err := recent.Commit(ctx); !errors.Is(err, ErrTooOld) && !errors.Is(err, ErrConflict) {
			t.Errorf("a transaction of an hour ago: %v", err)
		}
	})
}

func TestStoresThatDoNotAgree(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx := w.Context()
		pr := &process{}
		dying := w.open(pr, nil)
		pr.at, pr.fault = pr.gets+pr.swaps+5, crashBefore // both locks are there
		if err := dying.Update(ctx, move("x/a", "y/b", 1)); err == nil {
			t.Fatal("it survived")
		}
		wrong := w.open(nil, nil)
		for i := range wrong.places {
			if wrong.places[i].prefix == "x/" {
				wrong.places[i].store, wrong.places[i].id = w.rest, wrong.places[2].id
			}
		}
		time.Sleep(time.Minute)
		err := wrong.View(ctx, func(tx *Tx) error { _, err := number(tx, "y/b"); return err })
		if !errors.Is(err, ErrStores) || interlock.Kind(err) != interlock.Definite {
			t.Errorf("a process with other stores: %v", err)
		}
		right := w.open(nil, nil)
		if got := w.values(right, "x/a", "y/b"); got[0] != 0 || got[1] != 0 {
			t.Errorf("afterwards: %v", got)
		}
		w.clean(right)
	})
}

// TestOpenRefusesAnotherMapping: keys written by one mapping would be missing by the other.
func TestOpenRefusesAnotherMapping(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db := w.Context(), w.open(nil, nil)
		w.set(db, map[string]int{"x/a": 1, "y/b": 1, "c": 1})
		for name, stores := range map[string]Stores{
			"stores that are exchanged":    {"x/": w.y, "y/": w.x},
			"one store for all":            {"": w.rest},
			"a prefix below another one":   {"x/": w.x, "x/a": w.y},
			"another store for all others": {"": memory.NewKeyValues(), "y/": w.y},
			"a prefix of its own for some": {"": w.rest, "z/": w.x},
		} {
			_, err := Open(ctx, db.oracle, stores, nil)
			if !errors.Is(err, ErrStores) || interlock.Kind(err) != interlock.Definite || !strings.Contains(fmt.Sprint(err), "prefix") {
				t.Errorf("%s: %v", name, err)
			}
		}
		pr := &process{}
		dying := w.open(pr, nil)
		pr.at, pr.fault = pr.gets+pr.swaps+5, crashAfter // y/b is committed, and z is not
		if err := dying.Update(ctx, move("y/b", "z", -1)); err == nil {
			t.Fatal("it survived")
		}
		time.Sleep(time.Minute)
		fewer, err := Open(ctx, db.oracle, Stores{"y/": w.y, "y/more": w.y}, nil)
		testbed.OK(t, err)
		w.set(fewer, map[string]int{"y/b": 0})
		time.Sleep(time.Minute)
		_, err = fewer.Collect(ctx, 0) // it does not see the locks that depend on y/b
		for name, err := range map[string]error{"collect": err, "snapshot": fewer.Snapshot(ctx, func(*Tx) error { return nil })} {
			if !errors.Is(err, ErrStores) || interlock.Kind(err) != interlock.Definite {
				t.Errorf("%s by a process with fewer stores: %v", name, err)
			}
		}
		if got := w.values(fewer, "y/b"); got[0] != 2 {
			t.Errorf("a process with fewer stores reads %v", got)
		}
		if _, err := Open(ctx, db.oracle, Stores{"y/": w.y, "y/more": w.x}, nil); !errors.Is(err, ErrStores) {
			t.Errorf("a prefix that was added by another process: %v", err)
		}
		if got := w.values(w.open(nil, nil), "x/a", "y/b", "c", "z"); !slices.Equal(got, []int{1, 2, 1, -1}) {
			t.Errorf("afterwards: %v", got)
		}
	})
}

// TestOracleIsUnreachable: nothing begins, nothing commits, and nothing is lost.
func TestOracleIsUnreachable(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, db, other, pr := w.Context(), w.open(nil, nil), w.open(nil, nil), &process{}
		w.set(db, map[string]int{"x/a": 100})
		oracle, err := timestamp.NewOracle(&path{w.oracle, pr}, "oracle", nil)
		testbed.OK(t, err)
		db.oracle = oracle
		tx, err := db.Begin(ctx)
		testbed.OK(t, err)
		testbed.OK(t, move("x/a", "y/b", 30)(tx))
		pr.dead = true
		_, beginErr := db.Begin(ctx)
		for name, err := range map[string]error{"begin": beginErr, "commit": tx.Commit(ctx), "update": db.Update(ctx, move("x/a", "y/b", 1))} {
			if err == nil || interlock.Kind(err) == interlock.Uncertain || !strings.Contains(err.Error(), "get timestamp") {
				t.Errorf("%s without an oracle: %v", name, err)
			}
		}
		w.clean(other)
		pr.dead = false
		if err := db.Update(ctx, move("x/a", "y/b", 1)); err != nil {
			t.Errorf("the oracle is back: %v", err)
		}
		w.close(db)
		if got := w.values(other, "x/a", "y/b"); got[0] != 99 || got[1] != 1 {
			t.Errorf("afterwards: %v", got)
		}
	})
}

// TestReadsAreNeverUncertain: nothing was written if the outcome of a read is unknown, as Postgres reports it.
func TestReadsAreNeverUncertain(t *testing.T) {
	w := newWorld(t)
	pr := &process{}
	db := w.open(pr, nil)
	defer w.close(db)
	reads := map[string]func(tx *Tx) error{
		"get":        func(tx *Tx) error { _, _, err := tx.Get(t.Context(), "x/1"); return err },
		"for update": func(tx *Tx) error { _, _, err := tx.ForUpdate(t.Context(), "x/1"); return err },
		"scan":       func(tx *Tx) error { _, err := tx.Scan(t.Context(), "", "", 1); return err },
	}
	for name, read := range reads {
		for run, with := range map[string]func(context.Context, func(tx *Tx) error) error{"Update": db.Update, "View": db.View} {
			pr.unread = &interlock.Error{Op: "get keys", Driver: "postgres", Kind: interlock.Uncertain, Err: io.ErrUnexpectedEOF}
			err := with(t.Context(), read)
			pr.unread = nil
			if interlock.Kind(err) != interlock.Retryable || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s in %s: %v", name, run, err)
			}
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	inWorld(t, func(w *world) {
		db := w.open(nil, nil)
		for name, open := range map[string]func() (*DB, error){
			"no oracle":   func() (*DB, error) { return Open(w.Context(), nil, Stores{"": w.rest}, nil) },
			"no stores":   func() (*DB, error) { return Open(w.Context(), db.oracle, nil, nil) },
			"a nil store": func() (*DB, error) { return Open(w.Context(), db.oracle, Stores{"": nil}, nil) },
			"a short TTL": func() (*DB, error) { return Open(w.Context(), db.oracle, Stores{"": w.rest}, &Options{TTL: 1}) },
		} {
			if _, err := open(); interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s: %v", name, err)
			}
		}
		part, err := Open(w.Context(), db.oracle, Stores{"x/": w.x}, nil)
		testbed.OK(t, err)
		testbed.WantKind(t, part.Update(w.Context(), func(tx *Tx) error { return tx.Put("a", nil) }), interlock.Bug, ErrStores)
	})
}

func TestDamagedRecordsAreNotReplaced(t *testing.T) {
	inWorld(t, func(w *world) {
		db := w.open(nil, nil)
		_, err := w.rest.Swap(w.Context(), driver.Swap{Key: "data:a", Value: []byte("damaged")})
		testbed.OK(t, err)
		_, err = db.safePointStore().Swap(w.Context(), driver.Swap{Key: safePointKey, Value: []byte(`{"format":2}`)})
		testbed.OK(t, err)
		testbed.WantKind(t, db.Update(w.Context(), func(tx *Tx) error { return tx.Put("a", nil) }), interlock.Definite, errFormat)
		err = db.change(w.Context(), func(*safePoint, Timestamp) error { return nil })
		testbed.WantKind(t, err, interlock.Definite, errFormat)
		w.set(db, map[string]int{"b": 1})
	})
}

func TestUpdateReturnsTheErrorOfItsFunction(t *testing.T) {
	inWorld(t, func(w *world) {
		db, why := w.open(nil, nil), errors.New("the balance is too low")
		err := db.Update(w.Context(), func(tx *Tx) error { return errors.Join(add(tx, "a", 1), why) })
		if got := w.values(db, "a"); !errors.Is(err, why) || got[0] != 0 {
			t.Errorf("%v, and then %v", err, got)
		}
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		testbed.WantKind(t, db.Update(ended, move("a", "b", 1)), interlock.Definite, nil)
	})
}

// TestCommitAfterItsContext: a transaction whose context has ended writes nothing, neither with locks nor in one phase.
func TestCommitAfterItsContext(t *testing.T) {
	for _, open := range []func(*world, *process, *Options) *DB{(*world).open, (*world).openAlone} {
		inWorld(t, func(w *world) {
			db := open(w, &process{}, nil)
			ctx, end := context.WithCancelCause(w.Context())
			err := db.Update(ctx, func(tx *Tx) error {
				end(interlock.ErrLost)
				return add(tx, "a", 1)
			})
			testbed.WantKind(t, err, interlock.Definite, interlock.ErrLost)
			if got := w.values(db, "a"); got[0] != 0 {
				t.Errorf("it is %d", got[0])
			}
		})
	}
}

// TestPhantoms: a serializable transaction does not commit if a key appeared in a range
// that it has scanned. A full page ends that range.
func TestPhantoms(t *testing.T) {
	for _, test := range []struct {
		serializable bool
		limit        int
		key          string
		conflict     bool
	}{{false, 10, "x/2", false}, {true, 10, "x/2", true}, {true, 2, "x/2", true}, {true, 2, "x/4", false}} {
		inWorld(t, func(w *world) {
			db := w.open(nil, &Options{Serializable: test.serializable})
			w.set(db, map[string]int{"x/1": 1, "x/3": 1})
			tx, err := db.Begin(w.Context())
			testbed.OK(t, err)
			pairs, err := tx.Scan(w.Context(), "x/", "x0", test.limit)
			if err != nil || len(pairs) != 2 {
				t.Fatalf("scan: %v, %v", pairs, err)
			}
			w.set(db, map[string]int{test.key: 1})
			testbed.OK(t, tx.Put("count", []byte{2}))
			if err := tx.Commit(w.Context()); errors.Is(err, ErrConflict) != test.conflict || err != nil && !test.conflict {
				t.Errorf("%+v: %v", test, err)
			}
			w.clean(db)
		})
	}
}

// TestTurns: of many clients of one process that want the same keys, each waits for its turn,
// and does not send requests that fail.
func TestTurns(t *testing.T) {
	const clients, each = 64, 4
	inWorld(t, func(w *world) {
		pr := &process{onSwap: func(*path) { time.Sleep(time.Duration(500+rand.IntN(1000)) * time.Microsecond) }}
		db := w.open(pr, nil)
		pr.gets, pr.swaps = 0, 0
		var running sync.WaitGroup
		for range clients {
			running.Go(func() {
				for range each {
					if err := db.Update(w.Context(), move("x/a", "y/b", 1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		running.Wait()
		if cost := float64(pr.gets+pr.swaps) / (clients * each); cost > 14 { // about 12; 17 if a turn ends at the commit of the primary, 110 without turns
			t.Errorf("a transaction cost %.1f requests", cost)
		}
		if got := w.values(db, "y/b"); got[0] != clients*each {
			t.Errorf("the sum is %d", got[0])
		}
		w.close(db)
		if synctest.Wait(); len(db.turns.keys) > 0 {
			t.Errorf("turns are left: %v", db.turns.keys)
		}
	})
}

// TestTurnsOfOtherKeys: no transaction waits for one that writes other keys, however many.
func TestTurnsOfOtherKeys(t *testing.T) {
	const clients, keys = 8, 64
	inWorld(t, func(w *world) {
		db := w.open(&process{delay: time.Millisecond}, nil)
		var runs atomic.Int64
		var running sync.WaitGroup
		for client := range clients {
			running.Go(func() {
				err := db.Update(w.Context(), func(tx *Tx) (err error) {
					runs.Add(1)
					for i := range keys {
						err = errors.Join(err, tx.Put(fmt.Sprint(client, " ", i), nil))
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		if n := runs.Load(); n != clients {
			t.Errorf("%d transactions ran %d times", clients, n)
		}
		w.close(db)
	})
}

// TestSlowTurn: a function that runs for long in its turn delays others by maxTurn. The
// end of their context ends their wait.
func TestSlowTurn(t *testing.T) {
	inWorld(t, func(w *world) {
		db, other := w.open(nil, nil), w.open(nil, nil)
		attempts, slow, ended := 0, make(chan struct{}), make(chan error)
		old, err := db.Begin(w.Context())
		testbed.OK(t, err)
		testbed.OK(t, old.Put("a", make([]byte, 8)))
		testbed.OK(t, old.Commit(w.Context()))
		go func() {
			ended <- db.Update(w.Context(), func(tx *Tx) error {
				switch attempts++; attempts {
				case 1:
					w.set(other, map[string]int{"a": 1}) // a conflict
				case 2:
					close(slow)
					time.Sleep(time.Minute)
				}
				return add(tx, "a", 1)
			})
		}()
		<-slow
		began := time.Now()
		bounded, cancel := context.WithTimeout(w.Context(), maxTurn/2)
		defer cancel()
		testbed.WantKind(t, db.Update(bounded, move("0", "a", 1)), interlock.Definite, context.DeadlineExceeded)
		testbed.OK(t, db.Update(w.Context(), func(tx *Tx) error { return add(tx, "0", 1) })) // a wait that ended keeps no turn
		testbed.WantKind(t, old.Commit(w.Context()), interlock.Bug, ErrDone)
		if waited := time.Since(began); waited != maxTurn/2 {
			t.Errorf("an ended transaction waited %v for its turn", waited-maxTurn/2)
		}
		testbed.OK(t, db.Update(w.Context(), move("a", "b", 1)))
		if waited := time.Since(began); waited != maxTurn {
			t.Errorf("it waited %v", waited)
		}
		testbed.OK(t, <-ended)
		if got := w.values(db, "a", "b"); got[0] != 1 || got[1] != 1 {
			t.Errorf("a and b are %v", got)
		}
	})
}

// TestCloseBesideCommits: Close may be called while other goroutines commit.
func TestCloseBesideCommits(t *testing.T) {
	w := newWorld(t)
	db, done := w.open(nil, nil), make(chan struct{})
	var committing sync.WaitGroup
	for i := range 4 {
		committing.Go(func() {
			for range 1000 {
				if err := db.Update(t.Context(), move(fmt.Sprint("x/", i), fmt.Sprint("y/", i), 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { committing.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		default:
			w.close(db)
		}
	}
}

// TestLongReads: a snapshot that reads many keys keeps no records in memory, and reads no other values
// than before.
func TestLongReads(t *testing.T) {
	inWorld(t, func(w *world) {
		db := w.open(nil, nil)
		w.set(db, map[string]int{"x/a": 1, "x/b": 2, "y/a": 3})
		for name, view := range map[string]func(context.Context, func(tx *Tx) error) error{"View": db.View, "Snapshot": db.Snapshot} {
			err := view(w.Context(), func(tx *Tx) error {
				pairs, err := tx.Scan(w.Context(), "", "", 100)
				if len(pairs) != 3 || len(tx.cells) > 0 {
					t.Errorf("%s: %d pairs, %d records in memory", name, len(pairs), len(tx.cells))
				}
				return errors.Join(err, add(tx, "x/a", 1), tx.Commit(w.Context()))
			})
			testbed.OK(t, err)
		}
		if got := w.values(db, "x/a"); got[0] != 3 {
			t.Errorf("%d after two commits", got[0])
		}
	})
}
