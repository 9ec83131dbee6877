// Package percolatortest runs transactions of several processes concurrently, and checks
// their reads. It injects no server faults: the caller does, while a workload runs.
package percolatortest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/txn/percolator"
)

// patience bounds one transaction.
const patience = 20 * time.Second

// Workload configures processes that run transactions.
type Workload struct {
	Processes int
	// Keys are in all stores, and have never been written.
	Keys []string
	// Open opens the database as a new process would. It is called again after a crash.
	Open func(ctx context.Context, process int) (*percolator.DB, error)
	// More reports whether a process runs another transaction after rounds of its own,
	// and done committed ones of all processes.
	More func(rounds, done int) bool
	// Draw returns a random number below n. It must be safe for concurrent use.
	Draw func(n int) int
}

var errCrashed = errors.New("the process is dead")

// Path is the connection of one process to a store. It delays requests by up to 3 ms, loses
// a few requests or replies, and kills the process at a few.
type Path struct {
	driver.KeyValues
	Draw    func(n int) int
	Crashed *atomic.Bool // of all paths of the process; nil means that it is never killed
	// OnePhase counts the keys that were written with the record "oracle", by commits in one phase; nil counts
	// nothing.
	OnePhase *atomic.Int64
}

func (p Path) pass(request func() error) error {
	time.Sleep(time.Duration(p.Draw(4)) * time.Millisecond)
	switch p.Draw(150) {
	case 0:
		return interlock.ErrUncertain
	case 1:
		_ = request()
		return interlock.ErrUncertain
	case 2:
		if p.Crashed != nil && p.Draw(3) == 0 {
			p.Crashed.Store(true)
		}
	}
	if p.Crashed != nil && p.Crashed.Load() {
		return &interlock.Error{Op: "ask", Kind: interlock.Definite, Err: errCrashed}
	}
	return request()
}

// Get implements driver.KeyValues.
func (p Path) Get(ctx context.Context, keys ...string) (kvs []driver.KeyValue, err error) {
	err = p.pass(func() (err error) { kvs, err = p.KeyValues.Get(ctx, keys...); return err })
	return kvs, err
}

// Swap implements driver.KeyValues.
func (p Path) Swap(ctx context.Context, swaps ...driver.Swap) (revision int64, err error) {
	err = p.pass(func() (err error) {
		revision, err = p.KeyValues.Swap(ctx, swaps...)
		if p.OnePhase != nil && revision > 0 && swaps[0].Key == "oracle" {
			p.OnePhase.Add(int64(len(swaps) - 1))
		}
		return err
	})
	return revision, err
}

// Scan implements driver.KeyValues.
func (p Path) Scan(ctx context.Context, from, to string, limit int) (kvs []driver.KeyValue, err error) {
	err = p.pass(func() (err error) { kvs, err = p.KeyValues.Scan(ctx, from, to, limit); return err })
	return kvs, err
}

// open repeats Open until it succeeds or ctx ends; then it returns nil.
func (w Workload) open(ctx context.Context, process int) *percolator.DB {
	for ctx.Err() == nil {
		db, err := w.Open(ctx, process)
		if err == nil {
			return db
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// run runs body in processes until More returns false, and returns how many times body
// succeeded.
func (w Workload) run(ctx context.Context, body func(ctx context.Context, db *percolator.DB, process, round int) error) (int, error) {
	var running sync.WaitGroup
	var done atomic.Int64
	for p := range w.Processes {
		running.Go(func() {
			db := w.open(ctx, p)
			for round := 0; db != nil && w.More(round, int(done.Load())); round++ {
				bounded, cancel := context.WithTimeout(ctx, patience)
				err := body(bounded, db, p, round)
				cancel()
				if err == nil {
					done.Add(1)
				}
				if errors.Is(err, errCrashed) {
					_ = db.Close(ctx)
					db = w.open(ctx, p)
				}
			}
			if db != nil {
				_ = db.Close(ctx)
			}
		})
	}
	running.Wait()
	return int(done.Load()), context.Cause(ctx)
}

// persist repeats a transaction in new processes until it succeeds.
func (w Workload) persist(ctx context.Context, body func(ctx context.Context, db *percolator.DB) error) error {
	for {
		db := w.open(ctx, 0)
		if db == nil {
			return context.Cause(ctx)
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		err := body(bounded, db)
		cancel()
		_ = db.Close(ctx)
		if err == nil {
			return nil
		}
	}
}

// Bank moves money between all keys, while a third of the processes audit in snapshots.
// It returns the number of transactions, and an error if an audit found a wrong sum.
func Bank(ctx context.Context, w Workload) (int, error) {
	const each = 100
	err := w.persist(ctx, func(ctx context.Context, db *percolator.DB) error {
		return db.Update(ctx, func(tx *percolator.Tx) error {
			var errs []error
			for _, key := range w.Keys {
				errs = append(errs, set(tx, key, each))
			}
			return errors.Join(errs...)
		})
	})
	if err != nil {
		return 0, fmt.Errorf("deposit: %w", err)
	}
	var wrong atomic.Pointer[error]
	audit := func(ctx context.Context, db *percolator.DB) error {
		sum := 0
		err := db.View(ctx, func(tx *percolator.Tx) error {
			sum = 0
			for _, key := range w.Keys {
				n, err := Number(ctx, tx, key)
				if err != nil {
					return err
				}
				sum += n
			}
			return nil
		})
		if err == nil && sum != each*len(w.Keys) {
			err := fmt.Errorf("an audit counts %d, there are %d", sum, each*len(w.Keys))
			wrong.Store(&err)
		}
		return err
	}
	done, err := w.run(ctx, func(ctx context.Context, db *percolator.DB, process, _ int) error {
		if process%3 == 2 {
			return audit(ctx, db)
		}
		from := w.Draw(len(w.Keys))
		to := (from + 1 + w.Draw(len(w.Keys)-1)) % len(w.Keys)
		n := 1 + w.Draw(20)
		return db.Update(ctx, func(tx *percolator.Tx) error {
			return errors.Join(Add(ctx, tx, w.Keys[from], -n), Add(ctx, tx, w.Keys[to], n))
		})
	})
	if err == nil {
		err = w.persist(ctx, audit)
	}
	if e := wrong.Load(); e != nil {
		return done, *e
	}
	return done, err
}

// Appends reads lists and appends to them, and judges the history by its dependency
// cycles. It returns the number of committed transactions, and an error if the history
// is not serializable or, otherwise, not of snapshot isolation.
func Appends(ctx context.Context, w Workload, serializable bool) (int, error) {
	var text bytes.Buffer
	log, err := history.NewWriter(&text, history.Header{Run: "appends"}, nil)
	if err != nil {
		return 0, err
	}
	done, err := w.run(ctx, func(ctx context.Context, db *percolator.DB, process, round int) error {
		plan := w.plan(int64(round + 1))
		call := log.Invoke(history.Event{Lane: fmt.Sprint("p", process), Op: history.OpTransaction, Value: history.FormatListOps(plan)})
		var saw []history.ListOp
		err := db.Update(ctx, func(tx *percolator.Tx) (err error) {
			saw, err = list(ctx, tx, plan)
			return err
		})
		if err != nil {
			call.End(err)
			return err
		}
		call.OK(history.FormatListOps(saw))
		return nil
	})
	if err := errors.Join(err, log.Close()); err != nil {
		return done, err
	}
	r, err := history.NewReader(&text)
	if err != nil {
		return done, err
	}
	judge := history.CheckSnapshotIsolation
	if serializable {
		judge = history.CheckSerializable
	}
	v, err := judge(r.Events())
	if err == nil && !v.OK() {
		err = fmt.Errorf("serializable %v: %v\n%s", serializable, v, text.String())
	}
	return done, err
}

// WriteSkew runs two concurrent transactions of doctors who take leave, after both have read
// how many are on call; one must stay. It returns how many are on call in the end, the fewest of
// up to 20 times: keys that an earlier transaction still uses make the two run one after the other.
func WriteSkew(ctx context.Context, db *percolator.DB, doctors [2]string, read func(ctx context.Context, tx *percolator.Tx, key string) (int, error)) (left int, err error) {
	left = len(doctors)
	for n := 0; n < 20 && left > 0 && err == nil; n++ {
		var now int
		now, err = takeLeave(ctx, db, doctors, read)
		left = min(left, now)
	}
	return left, err
}

func takeLeave(ctx context.Context, db *percolator.DB, doctors [2]string, read func(ctx context.Context, tx *percolator.Tx, key string) (int, error)) (int, error) {
	err := db.Update(ctx, func(tx *percolator.Tx) error {
		return errors.Join(set(tx, doctors[0], 1), set(tx, doctors[1], 1))
	})
	if err != nil {
		return 0, err
	}
	var running, both sync.WaitGroup
	both.Add(2)
	var errs [2]error
	for i, doctor := range doctors {
		running.Go(func() {
			met := false
			errs[i] = db.Update(ctx, func(tx *percolator.Tx) error {
				a, errA := read(ctx, tx, doctors[0])
				b, errB := read(ctx, tx, doctors[1])
				if !met { // both have read
					met = true
					both.Done()
					both.Wait()
				}
				if err := errors.Join(errA, errB); err != nil || a+b < 2 {
					return err
				}
				return Add(ctx, tx, doctor, -1)
			})
		})
	}
	running.Wait()
	left := 0
	err = db.View(ctx, func(tx *percolator.Tx) error {
		a, errA := Number(ctx, tx, doctors[0])
		b, errB := Number(ctx, tx, doctors[1])
		left = a + b
		return errors.Join(errA, errB)
	})
	return left, errors.Join(err, errs[0], errs[1])
}

// Number reads a key that holds a number; a key without a value has 0.
func Number(ctx context.Context, tx *percolator.Tx, key string) (int, error) {
	value, found, err := tx.Get(ctx, key)
	if err != nil || !found {
		return 0, err
	}
	return int(int64(binary.BigEndian.Uint64(value))), nil
}

// Add adds n to the number of a key.
func Add(ctx context.Context, tx *percolator.Tx, key string, n int) error {
	was, err := Number(ctx, tx, key)
	if err != nil {
		return err
	}
	return set(tx, key, was+n)
}

func set(tx *percolator.Tx, key string, n int) error {
	return tx.Put(key, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// plan returns one to three operations on lists, each on another key. Appended values are
// unique, as far as random numbers below 2^30 are.
func (w Workload) plan(round int64) (plan []history.ListOp) {
	seen := map[string]bool{}
	for range 1 + w.Draw(3) {
		op := history.ListOp{Key: w.Keys[w.Draw(len(w.Keys))], Seen: true}
		if seen[op.Key] {
			continue
		}
		seen[op.Key] = true
		if w.Draw(2) == 0 {
			op.Append = int64(w.Draw(1<<30))<<20 + round
		}
		plan = append(plan, op)
	}
	return plan
}

// list runs the operations in a transaction, and returns them with their reads.
func list(ctx context.Context, tx *percolator.Tx, plan []history.ListOp) (saw []history.ListOp, err error) {
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
