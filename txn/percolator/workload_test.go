package percolator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// A workload is processes that run transactions at once, over stores of which each
// request takes a while, may be lost, or is the last one of its process.
type workload struct {
	*testing.T
	open   func(process int) *DB // as of a new process; called again after a crash
	random *rand.Rand
	mu     sync.Mutex
}

func (l *workload) draw(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.IntN(n)
}

// weather is the way to a store in a workload.
type weather struct {
	driver.KeyValues
	*workload
	crashed *atomic.Bool
}

func (w weather) pass(request func() error) error {
	time.Sleep(time.Duration(w.draw(4)) * time.Millisecond)
	switch w.draw(150) {
	case 0:
		return interlock.ErrUncertain
	case 1:
		_ = request()
		return interlock.ErrUncertain
	case 2:
		if w.draw(3) == 0 {
			w.crashed.Store(true)
		}
	}
	if w.crashed.Load() {
		return &interlock.Error{Op: "ask", Kind: interlock.Definite, Err: errCrashed}
	}
	return request()
}

func (w weather) Get(ctx context.Context, keys ...string) (kvs []driver.KeyValue, err error) {
	err = w.pass(func() (err error) { kvs, err = w.KeyValues.Get(ctx, keys...); return err })
	return kvs, err
}

func (w weather) Swap(ctx context.Context, swaps ...driver.Swap) (revision int64, err error) {
	err = w.pass(func() (err error) { revision, err = w.KeyValues.Swap(ctx, swaps...); return err })
	return revision, err
}

func (w weather) Scan(ctx context.Context, from, to string, limit int) (kvs []driver.KeyValue, err error) {
	err = w.pass(func() (err error) { kvs, err = w.KeyValues.Scan(ctx, from, to, limit); return err })
	return kvs, err
}

// virtual is a workload in virtual time over memory.
func virtual(t *testing.T, seed uint64, o *Options) *workload {
	w := newWorld(t)
	l := &workload{T: t, random: rand.New(rand.NewPCG(seed, 7))}
	l.open = func(int) *DB {
		oracle, err := timestamp.NewOracle(w.oracle, "oracle", nil)
		if err != nil {
			t.Fatal(err)
		}
		for {
			crashed := new(atomic.Bool)
			db, err := Open(context.Background(), oracle, Stores{"x/": weather{w.x, l, crashed}, "y/": weather{w.y, l, crashed},
				"": weather{w.rest, l, crashed}}, o)
			if err == nil {
				return db
			}
		}
	}
	return l
}

// run lets processes run what body does, each with a history lane, and judges the
// history. After a crash a process goes on with a new database.
func (l *workload) run(processes, rounds int, body func(db *DB, lane string, round int, w *history.Writer) error,
	judge func(*history.Reader) (history.Verdict, error)) history.Verdict {
	l.Helper()
	var text bytes.Buffer
	w, err := history.NewWriter(&text, history.Header{Run: l.Name()}, nil)
	if err != nil {
		l.Fatal(err)
	}
	var running sync.WaitGroup
	for p := range processes {
		running.Go(func() {
			db := l.open(p)
			for round := range rounds {
				if err := body(db, fmt.Sprint("p", p), round, w); errors.Is(err, errCrashed) {
					_ = db.Close(context.Background())
					db = l.open(p)
				}
			}
			_ = db.Close(context.Background())
		})
	}
	running.Wait()
	if err := w.Close(); err != nil {
		l.Fatal(err)
	}
	r, err := history.NewReader(&text)
	if err != nil {
		l.Fatal(err)
	}
	v, err := judge(r)
	if err != nil {
		l.Fatal(err)
	}
	return v
}

// appends runs transactions that read and append to a few lists of three stores.
func (l *workload) appends(processes, rounds int, judge func(*history.Reader) (history.Verdict, error)) history.Verdict {
	keys := []string{"x/1", "x/2", "y/1", "y/2", "1", "2"}
	return l.run(processes, rounds, func(db *DB, lane string, round int, w *history.Writer) error {
		var plan []history.ListOp
		for i := range 1 + l.draw(3) {
			op := history.ListOp{Key: keys[(l.draw(2)*3+i*2+l.draw(2))%len(keys)], Seen: true}
			if l.draw(2) == 0 {
				op.Append = int64(l.draw(1<<30))<<20 + int64(round+1)
			}
			plan = append(plan, op)
		}
		plan = distinct(plan)
		call := w.Invoke(history.Event{Lane: lane, Op: history.OpTransaction, Value: history.FormatListOps(plan)})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		var saw []history.ListOp
		err := db.Update(ctx, func(tx *Tx) (err error) {
			saw, err = list(ctx, tx, plan)
			return err
		})
		if err != nil {
			call.End(err)
			return err
		}
		call.OK(history.FormatListOps(saw))
		return nil
	}, judge)
}

// distinct keeps the first operation of each key.
func distinct(plan []history.ListOp) (kept []history.ListOp) {
	seen := map[string]bool{}
	for _, op := range plan {
		if !seen[op.Key] {
			seen[op.Key] = true
			kept = append(kept, op)
		}
	}
	return kept
}

// list runs the operations in a transaction, and returns them with what was read.
func list(ctx context.Context, tx *Tx, plan []history.ListOp) (saw []history.ListOp, err error) {
	for _, op := range plan {
		value, found, err := tx.Get(ctx, op.Key)
		if err != nil {
			return nil, err
		}
		if found {
			if err := json.Unmarshal(value, &op.Read); err != nil {
				return nil, err
			}
		}
		saw = append(saw, op)
		if op.Append > 0 {
			text, err := json.Marshal(append(op.Read[:len(op.Read):len(op.Read)], op.Append))
			if err != nil {
				return nil, err
			}
			if err := tx.Put(op.Key, text); err != nil {
				return nil, err
			}
		}
	}
	return saw, nil
}

func checkSnapshot(r *history.Reader) (history.Verdict, error) {
	return history.CheckSnapshotIsolation(r.Events())
}

func checkSerializable(r *history.Reader) (history.Verdict, error) {
	return history.CheckSerializable(r.Events())
}

// TestAppends: lists under crashes and lost requests, with the cycle checker.
func TestAppends(t *testing.T) {
	done := 0
	for seed := range uint64(12) {
		serializable := seed%2 == 1
		judge := checkSnapshot
		if serializable {
			judge = checkSerializable
		}
		synctest.Test(t, func(t *testing.T) {
			v := virtual(t, seed, &Options{Serializable: serializable}).appends(5, 40, judge)
			if !v.OK() {
				t.Fatalf("seed %d, serializable %v: %v", seed, serializable, v)
			}
			done += v.Done
		})
	}
	if done < 1200 {
		t.Errorf("only %d transactions were committed", done)
	}
}

// TestBank: transfers between three stores, with audits beside them in snapshots.
func TestBank(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			l := virtual(t, seed, nil)
			accounts := []string{"x/1", "x/2", "y/1", "y/2", "1", "2"}
			first := l.open(0)
			for deposited := false; !deposited; {
				err := first.Update(t.Context(), func(tx *Tx) error {
					for _, a := range accounts {
						if err := tx.Put(a, []byte{0, 0, 0, 0, 0, 0, 0, 100}); err != nil {
							return err
						}
					}
					return nil
				})
				if deposited = err == nil; !deposited {
					first = l.open(0)
				}
			}
			audits := 0
			l.run(6, 40, func(db *DB, lane string, _ int, _ *history.Writer) error {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				if lane < "p4" {
					from := l.draw(len(accounts))
					return db.Update(ctx, move(accounts[from], accounts[(from+1+l.draw(5))%len(accounts)], 1+l.draw(20)))
				}
				sum := 0
				err := db.View(ctx, func(tx *Tx) error {
					sum = 0
					for _, a := range accounts {
						n, err := number(tx, a)
						if err != nil {
							return err
						}
						sum += n
					}
					return nil
				})
				if err == nil {
					l.mu.Lock()
					audits++
					l.mu.Unlock()
					if sum != 600 {
						t.Errorf("seed %d: an audit counts %d", seed, sum)
					}
				}
				return err
			}, checkSnapshot)
			if audits < 50 {
				t.Errorf("only %d audits", audits)
			}
			_ = first.Close(t.Context())
		})
	}
}

// TestWriteSkew takes place with snapshot isolation, and not with Serializable or
// ForUpdate.
func TestWriteSkew(t *testing.T) {
	skew := func(o *Options, read func(tx *Tx, key string) (int, error)) (sum int) {
		inWorld(t, func(w *world) {
			db := w.open(nil, o)
			w.set(db, map[string]int{"x/a": 1, "y/b": 1})
			var running, both sync.WaitGroup
			both.Add(2)
			for _, key := range []string{"x/a", "y/b"} {
				running.Go(func() {
					met := false
					err := db.Update(w.Context(), func(tx *Tx) error { // one may take a leave if two are on call
						a, errA := read(tx, "x/a")
						b, errB := read(tx, "y/b")
						if err := errors.Join(errA, errB); err != nil {
							return err
						}
						if !met { // both have read
							met = true
							both.Done()
							both.Wait()
						}
						if a+b < 2 {
							return nil
						}
						return add(tx, key, -1)
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			running.Wait()
			got := w.values(db, "x/a", "y/b")
			sum = got[0] + got[1]
			w.close(db)
		})
		return sum
	}
	lockAll := func(tx *Tx, key string) (int, error) {
		_, _, err := tx.ForUpdate(context.Background(), key)
		if err != nil {
			return 0, err
		}
		return number(tx, key)
	}
	if sum := skew(nil, number); sum != 0 {
		t.Errorf("with snapshot isolation %d are on call: the test shows nothing", sum)
	}
	if sum := skew(&Options{Serializable: true}, number); sum != 1 {
		t.Errorf("serializable: %d are on call", sum)
	}
	if sum := skew(nil, lockAll); sum != 1 {
		t.Errorf("with ForUpdate: %d are on call", sum)
	}
}

// TestPhantoms: a serializable transaction does not commit if a key appeared in a range
// that it has scanned.
func TestPhantoms(t *testing.T) {
	for _, serializable := range []bool{false, true} {
		inWorld(t, func(w *world) {
			db := w.open(nil, &Options{Serializable: serializable})
			w.set(db, map[string]int{"x/1": 1, "x/3": 1})
			tx, err := db.Begin(w.Context())
			if err != nil {
				t.Fatal(err)
			}
			pairs, err := tx.Scan(w.Context(), "x/", "x0", 10)
			if err != nil || len(pairs) != 2 {
				t.Fatalf("scan: %v, %v", pairs, err)
			}
			w.set(db, map[string]int{"x/2": 1})
			if err := tx.Put("count", []byte{2}); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(w.Context()); errors.Is(err, ErrConflict) != serializable || err != nil && !serializable {
				t.Errorf("serializable %v: %v", serializable, err)
			}
			w.clean(db)
		})
	}
}
