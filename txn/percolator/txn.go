package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Tx is a transaction: it reads one snapshot, and writes all of its keys or none. Writes
// stay in memory until Commit. It is not safe for concurrent use.
type Tx struct {
	db     *DB
	start  Timestamp
	begun  boottime.Instant   // when start was returned
	passed map[Timestamp]bool // transactions that commit above the snapshot
	cells  map[string]*cell
	writes map[string]write // by key; only Kind and Value are set
	reads  map[string]bool  // keys to validate
	ranges []keyRange
	views  bool // its function reads, and seldom commits: records are not kept for a write
	ended  bool
}

type keyRange struct{ from, to string }

// Pair is a key with its value.
type Pair struct {
	Key   string
	Value []byte
}

// Begin begins a transaction with a snapshot as of now. A transaction can be abandoned:
// nothing is locked before Commit.
func (db *DB) Begin(ctx context.Context) (*Tx, error) {
	start, err := db.now(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{db: db, start: start, begun: boottime.Now(), passed: map[Timestamp]bool{},
		cells: map[string]*cell{}, writes: map[string]write{}, reads: map[string]bool{}}, nil
}

// View runs fn with a snapshot, and returns fn's error. It does not commit fn's writes. If the
// snapshot is too old, fn runs again with a newer one.
func (db *DB) View(ctx context.Context, fn func(tx *Tx) error) error {
	return rerun(ctx, func() error {
		_, err := db.try(ctx, func(tx *Tx) error {
			tx.views = true // it may read more than fits into memory
			return fn(tx)
		})
		return err
	})
}

// Update runs fn in a transaction and commits it. If it conflicts with another one, or is
// too old, fn runs again, with capped exponential backoff, until ctx ends. If fn returns
// another error, nothing is written and Update returns the error.
//
// An Uncertain error means that the commit may have taken effect: repeat the transaction
// only if that is harmless.
func (db *DB) Update(ctx context.Context, fn func(tx *Tx) error) error {
	return rerun(ctx, func() error {
		tx, err := db.try(ctx, fn)
		if err != nil {
			return err
		}
		unlock, waited, err := tx.lock(ctx)
		if err != nil {
			return err
		}
		committed := false
		defer func() {
			if !committed {
				unlock()
			}
		}()
		if !waited { // otherwise the snapshot is older than the commit it waited for
			err = tx.commit(ctx, unlock)
		}
		if waited || again(err) {
			// No commit of this process conflicts now, if fn writes the same keys again.
			if tx, err = db.try(ctx, fn); err == nil {
				err = tx.commit(ctx, unlock)
			}
		}
		committed = err == nil
		return err
	})
}

// try begins a transaction and runs fn in it.
func (db *DB) try(ctx context.Context, fn func(tx *Tx) error) (*Tx, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return tx, fn(tx)
}

func rerun(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		if err := try(); !again(err) || !transactions.Wait(ctx, n) {
			return err
		}
	}
}

// again reports whether a new transaction may succeed where one failed with err.
func again(err error) bool {
	return interlock.Kind(err) == interlock.Retryable && (errors.Is(err, ErrConflict) || errors.Is(err, ErrTooOld) || errors.Is(err, errAborted))
}

// Start returns the timestamp of the snapshot.
func (tx *Tx) Start() Timestamp { return tx.start }

// Get returns the value of a key in the snapshot, or as the transaction wrote it; found is
// false if there is none. Do not change the value. No error is Uncertain: a read has no effect.
func (tx *Tx) Get(ctx context.Context, key string) (value []byte, found bool, err error) {
	defer func() { err = failure.Uncommitted(err) }()
	if w, ok := tx.writes[key]; ok && w.Kind != lockOnly {
		return w.Value, w.Kind == put, nil
	}
	c, p, err := tx.cell("get", key)
	if err != nil {
		return nil, false, err
	}
	a, err := tx.read(ctx, tx.db.places[p], c)
	if err != nil {
		return nil, false, err
	}
	tx.reads[key] = true
	return a.value, a.found, tx.recent(ctx, key)
}

// ForUpdate is [Tx.Get] that conflicts like a write: the transaction conflicts with all others
// that write the key until it commits.
func (tx *Tx) ForUpdate(ctx context.Context, key string) (value []byte, found bool, err error) {
	value, found, err = tx.Get(ctx, key)
	if _, ok := tx.writes[key]; err == nil && !ok {
		err = tx.write("lock", key, lockOnly, nil)
	}
	return value, found, err
}

// Put sets the value of a key, of at most [MaxValue] bytes, when the transaction commits.
func (tx *Tx) Put(key string, value []byte) error {
	if len(value) > MaxValue {
		return failed("put", key, interlock.Bug, fmt.Errorf("%w: the value has %d bytes, at most %d are allowed", ErrTooLarge, len(value), MaxValue))
	}
	return tx.write("put", key, put, append([]byte{}, value...))
}

// Delete removes a key when the transaction commits. It need not exist.
func (tx *Tx) Delete(key string) error { return tx.write("delete", key, remove, nil) }

func (tx *Tx) write(op, key string, k kind, value []byte) error {
	if _, _, err := tx.cell(op, key); err != nil {
		return err
	}
	if _, ok := tx.writes[key]; !ok && len(tx.writes) == MaxKeys {
		return failed(op, key, interlock.Bug, fmt.Errorf("%w: a transaction writes at most %d keys", ErrTooLarge, MaxKeys))
	}
	tx.writes[key] = write{Kind: k, Value: value}
	return nil
}

// cell returns the transaction's cell of a key, and the index of its place.
func (tx *Tx) cell(op, key string) (*cell, int, error) {
	if tx.ended {
		return nil, 0, failed(op, key, interlock.Bug, ErrDone)
	}
	if err := driver.CheckName(op, "a key", key, MaxKey); err != nil {
		return nil, 0, err
	}
	p, err := tx.db.place(op, key)
	if err != nil {
		return nil, 0, err
	}
	if tx.cells[key] == nil {
		tx.cells[key] = &cell{key: key}
	}
	return tx.cells[key], p, nil
}

// Scan returns up to limit pairs with from ≤ key < to in ascending order, as Get would; an
// empty to is no bound. It blocks while it reads the stores. No error is Uncertain.
func (tx *Tx) Scan(ctx context.Context, from, to string, limit int) (pairs []Pair, err error) {
	defer func() { err = failure.Uncommitted(err) }()
	switch {
	case tx.ended:
		return nil, failed("scan", from, interlock.Bug, ErrDone)
	case limit < 1:
		return nil, failed("scan", from, interlock.Bug, fmt.Errorf("a limit of %d", limit))
	}
	found := map[string][]byte{}
	for key, w := range tx.writes {
		if w.Kind == put && key >= from && (to == "" || key < to) {
			found[key] = w.Value
		}
	}
	for i := range tx.db.places {
		if err := tx.scan(ctx, i, keyRange{from, to}, limit, found); err != nil {
			return nil, err
		}
	}
	if err := tx.recent(ctx, from); err != nil {
		return nil, err
	}
	pairs = make([]Pair, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		pairs = append(pairs, Pair{key, found[key]})
	}
	if len(pairs) >= limit { // a key after the last pair would change nothing
		pairs = pairs[:limit]
		to = pairs[limit-1].Key + "\x00"
	}
	tx.ranges = append(tx.ranges, keyRange{from, to})
	return pairs, nil
}

// scan adds up to limit pairs of one place to found.
func (tx *Tx) scan(ctx context.Context, place int, r keyRange, limit int, found map[string][]byte) error {
	count := 0
	return tx.db.each(ctx, place, r, func(c *cell) (bool, error) {
		w, written := tx.writes[c.key]
		if written && w.Kind != lockOnly {
			return true, nil // it is in found, or deleted
		}
		a, err := tx.read(ctx, tx.db.places[place], c)
		if err != nil {
			return false, err
		}
		if tx.cells[c.key] == nil && !tx.views {
			tx.cells[c.key] = c
		}
		if a.found {
			found[c.key] = a.value
			count++
		}
		return count < limit, nil
	})
}

// each calls fn for the records of a range in one place, until it returns false.
func (db *DB) each(ctx context.Context, place int, r keyRange, fn func(c *cell) (bool, error)) error {
	const page = 256
	p, to := db.places[place], "data;" // above all with dataPrefix
	if r.to != "" {
		to = dataPrefix + r.to
	}
	for from := dataPrefix + max(r.from, p.prefix); from < to; {
		var kvs []driver.KeyValue
		err := persist(ctx, func() (err error) {
			kvs, err = p.store.Scan(ctx, from, to, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, kv := range kvs {
			c := &cell{key: strings.TrimPrefix(kv.Key, dataPrefix)}
			if !strings.HasPrefix(c.key, p.prefix) {
				return nil // after all with the prefix
			}
			if at, err := db.place("scan", c.key); err != nil || at != place {
				continue // of a longer prefix
			}
			if err := c.set(kv); err != nil {
				return err
			}
			if more, err := fn(c); err != nil || !more {
				return err
			}
		}
		if len(kvs) < page {
			return nil
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
	return nil
}
