package percolator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// What can happen to one request of a process.
type fault int

const (
	none fault = iota
	crashBefore
	crashAfter
	lostRequest
	lostReply
	lateWrite // a swap takes place seconds after its caller gave up
)

const lateness = 3 * time.Second

var (
	errCrashed = errors.New("the process is dead")
	errLate    = fmt.Errorf("no answer: %w", interlock.ErrUncertain)
)

// process counts the requests of one process to all stores, and lets one of them fail.
type process struct {
	mu     sync.Mutex
	gets   int
	swaps  int
	scans  int
	at     int // the request that has the fault; 0 is none
	fault  fault
	dead   bool
	unread error             // of all gets and scans, if it is not nil
	delay  time.Duration     // of each request before it reaches the store
	onSwap func(store *path) // before each swap, if it is not nil
}

// path is the connection of a process to a store.
type path struct {
	driver.KeyValues
	process *process
}

// pass runs a request with its fault.
func (p *path) pass(count *int, request func() error) error {
	pr := p.process
	time.Sleep(pr.delay)
	pr.mu.Lock()
	*count++
	f := none
	if pr.at > 0 && pr.gets+pr.swaps+pr.scans == pr.at {
		f = pr.fault
	}
	if f == crashBefore || f == crashAfter {
		pr.dead = true
	}
	dead := pr.dead
	pr.mu.Unlock()
	switch {
	case f == lostRequest:
		return interlock.ErrUncertain
	case f == lateWrite:
		return errLate
	case f == crashAfter, f == lostReply:
		_ = request()
		if f == lostReply {
			return interlock.ErrUncertain
		}
		fallthrough
	case dead:
		return &interlock.Error{Op: "ask", Kind: interlock.Definite, Err: errCrashed}
	}
	return request()
}

func (p *path) Get(ctx context.Context, keys ...string) (kvs []driver.KeyValue, err error) {
	err = p.pass(&p.process.gets, func() (err error) {
		if p.process.unread != nil {
			return p.process.unread
		}
		kvs, err = p.KeyValues.Get(ctx, keys...)
		return err
	})
	return kvs, err
}

func (p *path) Swap(ctx context.Context, swaps ...driver.Swap) (revision int64, err error) {
	if p.process.onSwap != nil {
		p.process.onSwap(p)
	}
	err = p.pass(&p.process.swaps, func() (err error) {
		revision, err = p.KeyValues.Swap(ctx, swaps...)
		return err
	})
	if errors.Is(err, errLate) {
		go func() {
			time.Sleep(lateness)
			_, _ = p.KeyValues.Swap(context.WithoutCancel(ctx), swaps...)
		}()
	}
	return revision, err
}

func (p *path) Scan(ctx context.Context, from, to string, limit int) (kvs []driver.KeyValue, err error) {
	err = p.pass(&p.process.scans, func() (err error) {
		if p.process.unread != nil {
			return p.process.unread
		}
		kvs, err = p.KeyValues.Scan(ctx, from, to, limit)
		return err
	})
	return kvs, err
}

// world contains the stores that processes share. Keys with the prefixes "x/" and "y/" have
// their own stores.
type world struct {
	*testing.T
	oracle, x, y, rest *memory.KeyValues
}

func newWorld(t *testing.T) *world {
	return &world{t, memory.NewKeyValues(), memory.NewKeyValues(), memory.NewKeyValues(), memory.NewKeyValues()}
}

// openAlone returns a database of a process that leads the oracle in the store of all keys
// without a prefix: it commits in one phase.
func (w *world) openAlone(pr *process, o *Options) *DB {
	w.Helper()
	store := &path{w.rest, pr}
	db, err := Open(w.Context(), w.lead(store), Stores{"x/": w.x, "y/": w.y, "": store}, o)
	testbed.OK(w, err)
	return db
}

// lead returns an oracle that has led for minutes, and need not raise its bound now.
func (w *world) lead(store driver.KeyValues) *timestamp.Oracle {
	w.Helper()
	oracle, err := timestamp.NewOracle(store, "oracle", nil)
	for range 3 {
		if time.Sleep(time.Minute); err == nil {
			_, err = oracle.Next(w.Context())
		}
	}
	testbed.OK(w, err)
	return oracle
}

// open returns a database of one process. Its oracle is not counted and cannot fail.
func (w *world) open(pr *process, o *Options) *DB {
	w.Helper()
	return w.openAt(w.newOracle(), pr, o)
}

func (w *world) newOracle() *timestamp.Oracle {
	w.Helper()
	oracle, err := timestamp.NewOracle(w.oracle, "oracle", nil)
	testbed.OK(w, err)
	return oracle
}

func (w *world) openAt(oracle *timestamp.Oracle, pr *process, o *Options) *DB {
	w.Helper()
	way := func(s *memory.KeyValues) driver.KeyValues {
		if pr == nil {
			return s
		}
		return &path{s, pr}
	}
	db, err := Open(context.Background(), oracle, Stores{"x/": way(w.x), "y/": way(w.y), "": way(w.rest)}, o)
	testbed.OK(w, err)
	return db
}

// set commits values, which are numbers, and waits until no lock is left.
func (w *world) set(db *DB, pairs map[string]int) {
	w.Helper()
	err := db.Update(context.Background(), func(tx *Tx) error {
		for key, n := range pairs {
			if err := add(tx, key, n); err != nil {
				return err
			}
		}
		return nil
	})
	testbed.OK(w, err)
	w.close(db)
}

func (w *world) close(db *DB) {
	w.Helper()
	testbed.OK(w, db.Close(context.Background()))
}

// values reads numbers in one snapshot.
func (w *world) values(db *DB, keys ...string) (values []int) {
	w.Helper()
	err := db.View(context.Background(), func(tx *Tx) error {
		values = nil
		for _, key := range keys {
			n, err := number(tx, key)
			if err != nil {
				return err
			}
			values = append(values, n)
		}
		return nil
	})
	testbed.OK(w, err)
	return values
}

// clean fails if a lock is left.
func (w *world) clean(db *DB) {
	w.Helper()
	err := db.all(context.Background(), func(_ place, c *cell) error {
		if c.record.Lock != nil {
			return fmt.Errorf("%q is locked: %+v", c.key, c.record.Lock)
		}
		return nil
	})
	testbed.OK(w, err)
}

func number(tx *Tx, key string) (int, error) {
	value, found, err := tx.Get(context.Background(), key)
	if err != nil || !found {
		return 0, err
	}
	return int(int64(binary.BigEndian.Uint64(value))), nil
}

// add adds n to a key.
func add(tx *Tx, key string, n int) error {
	was, err := number(tx, key)
	if err != nil {
		return err
	}
	return tx.Put(key, binary.BigEndian.AppendUint64(nil, uint64(was+n)))
}

// move moves n from one key to another.
func move(from, to string, n int) func(tx *Tx) error {
	return func(tx *Tx) error {
		if err := add(tx, from, -n); err != nil {
			return err
		}
		return add(tx, to, n)
	}
}
