package percolator

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

const (
	safePointKey = "percolator:safe"
	// holdTTL is the time for which the snapshot of a dead process holds back the safe point.
	holdTTL = time.Minute
)

// A safePoint is the state that all collections share, in the store with the first identity.
type safePoint struct {
	Format int `json:"format"` // documentFormat
	// Safe is the highest safe point below which records were collected.
	Safe Timestamp `json:"safe"`
	// Held are snapshots that a safe point must not pass, by a random name.
	Held map[string]held `json:"held,omitempty"`
}

type held struct {
	Start   Timestamp `json:"start"`
	Expires Timestamp `json:"expires"` // by the oracle's time
}

// hold adds a snapshot, or renews it.
func (s *safePoint) hold(name string, start, now Timestamp) error {
	if start < s.Safe {
		return because("snapshot", "", answer{outcome: tooOld, at: s.Safe})
	}
	s.Held[name] = held{start, now.Add(holdTTL)}
	return nil
}

// raise registers and returns the safe point of a collection, at most safe.
func (s *safePoint) raise(safe, now Timestamp) Timestamp {
	maps.DeleteFunc(s.Held, func(_ string, h held) bool { return h.Expires <= now })
	for _, h := range s.Held {
		safe = min(safe, h.Start)
	}
	s.Safe = max(s.Safe, safe)
	return safe
}

func (db *DB) safePointStore() driver.KeyValues {
	return slices.MinFunc(db.places, func(a, b place) int { return strings.Compare(a.id, b.id) }).store
}

// complete returns an error if another process has a store that this one lacks: locks in it may
// depend on records here, and collections may register another safe point.
func (db *DB) complete(ctx context.Context) error {
	for _, p := range db.places {
		m, err := identify(ctx, p.store)
		if err != nil {
			return err
		}
		for prefix, id := range m.Stores {
			if !slices.ContainsFunc(db.places, func(p place) bool { return p.id == id }) {
				return failed("find safe point", prefix, interlock.Definite, fmt.Errorf("%w: this process has no store for the prefix %q", ErrStores, prefix))
			}
		}
	}
	return nil
}

func (db *DB) safePoint(ctx context.Context) (s safePoint, revision int64, err error) {
	var kvs []driver.KeyValue
	err = persist(ctx, func() (err error) {
		kvs, err = db.safePointStore().Get(ctx, safePointKey)
		return err
	})
	if err != nil {
		return s, 0, err
	}
	if revision = kvs[0].Revision; revision > 0 {
		if json.Unmarshal(kvs[0].Value, &s) != nil || s.Format != documentFormat {
			return s, 0, failed("read safe point", safePointKey, interlock.Definite, errFormat)
		}
	}
	if s.Held == nil {
		s.Held = map[string]held{}
	}
	return s, revision, nil
}

// change changes the safe point by compare-and-swap. A change can be repeated.
func (db *DB) change(ctx context.Context, change func(s *safePoint, now Timestamp) error) error {
	for n := 1; ; n++ {
		now, err := db.now(ctx)
		if err != nil {
			return err
		}
		s, revision, err := db.safePoint(ctx)
		if err == nil {
			err = change(&s, now)
		}
		if err != nil {
			return err
		}
		s.Format = documentFormat
		text, err := json.Marshal(s)
		if err != nil {
			return err
		}
		revision, err = db.safePointStore().Swap(ctx, driver.Swap{Key: safePointKey, Revision: revision, Value: text})
		kind := interlock.Kind(err)
		switch {
		case err == nil && revision > 0:
			return nil
		case err != nil && (n >= maxAttempts || kind != interlock.Retryable && kind != interlock.Uncertain):
			return err
		case !requests.Wait(ctx, n):
			return failed("change safe point", "", interlock.Retryable, context.Cause(ctx))
		}
	}
}

// Snapshot is View for reads that take longer than a collection keeps versions, such as a
// backup: no safe point passes the snapshot until fn returns, unless a clock leaps (see Bounds): then
// fn gets [ErrTooOld] and runs again. A process that lacks a store gets
// [ErrStores]. It costs a read of each store at the beginning, and one more read and write then
// and every 20 s. A dead process holds the safe point back for a
// minute. Records that are written often still keep only 64 versions.
func (db *DB) Snapshot(ctx context.Context, fn func(tx *Tx) error) error {
	if err := db.complete(ctx); err != nil {
		return err
	}
	return db.View(ctx, func(tx *Tx) error {
		name := crand.Text()
		hold := func(ctx context.Context) error {
			return db.change(ctx, func(s *safePoint, now Timestamp) error { return s.hold(name, tx.start, now) })
		}
		defer db.letGo(ctx, name)
		if err := hold(ctx); err != nil {
			return err
		}
		defer every(ctx, holdTTL/3, func(ctx context.Context) bool { return !errors.Is(hold(ctx), ErrTooOld) })()
		return fn(tx)
	})
}

// letGo removes a snapshot. If that fails, it expires.
func (db *DB) letGo(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanTimeout, errNoTime)
	defer cancel()
	_ = db.change(ctx, func(s *safePoint, _ Timestamp) error {
		delete(s.Held, name)
		return nil
	})
}

// recent refuses a read if the snapshot is so old that a deleted record, whose safe point is
// gone, may have had the value. Records are deleted [MaxAge] after they were emptied, by the oracle's
// time, which can leap by half an hour, and by a minute at changes of its leader.
func (tx *Tx) recent(ctx context.Context, key string) error {
	if boottime.Now().Sub(tx.begun) < MaxAge/2-time.Minute {
		return nil
	}
	s, err := safePoint{}, tx.db.complete(ctx)
	if err == nil {
		s, _, err = tx.db.safePoint(ctx)
	}
	if err == nil && tx.start < s.Safe {
		err = because("read", key, answer{outcome: tooOld, at: s.Safe})
	}
	return err
}

// Collect drops versions that no snapshot younger than keep can see, and the records of keys
// that were deleted long ago. It returns the safe point: from then on, transactions that
// began before it get [ErrTooOld] if they need dropped versions. Collect first resolves all
// locks below the safe point and registers it in a store. A living transaction or a
// [DB.Snapshot] below it lowers it. Collect reads all keys twice; run it every few minutes,
// in any process that has all stores: others get [ErrStores]. Concurrent calls are harmless.
func (db *DB) Collect(ctx context.Context, keep time.Duration) (Timestamp, error) {
	if keep < 0 {
		return 0, failed("collect", "", interlock.Bug, fmt.Errorf("keep is %v", keep))
	}
	now, err := db.now(ctx)
	if err != nil {
		return 0, err
	}
	safe := now.Add(-keep)
	if err := db.complete(ctx); err != nil { // transactions of stores that are added later begin after now
		return 0, err
	}
	err = db.all(ctx, func(_ place, c *cell) error {
		for c.record.Lock != nil && c.record.Lock.Start < safe {
			l := c.record.Lock
			fate, err := db.resolve(ctx, c.key, l, 0)
			if err != nil {
				return err
			}
			if fate.outcome == alive {
				safe = l.Start
			} else {
				return nil
			}
		}
		return nil
	})
	if err == nil {
		err = db.change(ctx, func(s *safePoint, now Timestamp) error {
			safe = s.raise(safe, now)
			return nil
		})
	}
	if err != nil {
		return 0, err
	}
	return safe, db.all(ctx, func(p place, c *cell) error { return db.drop(ctx, p, c, safe, now) })
}

// all calls fn for every record.
func (db *DB) all(ctx context.Context, fn func(p place, c *cell) error) error {
	for i, p := range db.places {
		if err := db.each(ctx, i, keyRange{}, func(c *cell) (bool, error) { return true, fn(p, c) }); err != nil {
			return err
		}
	}
	return nil
}

// drop collects one record. A record that contains only a safe point is deleted when every
// transaction below that is older than [MaxAge]: none of those can commit, even if a
// request arrives late.
func (db *DB) drop(ctx context.Context, p place, c *cell, safe, now Timestamp) error {
	r, _ := collect(c.record, safe)
	if r.empty() && now.Sub(c.record.Safe) > MaxAge && c.record.empty() {
		_, err := p.store.Swap(ctx, driver.Swap{Key: dataPrefix + c.key, Revision: c.revision, Delete: true})
		return err
	}
	if len(r.Writes) == len(c.record.Writes) && len(r.Aborted) == len(c.record.Aborted) && !r.empty() ||
		bytes.Equal(r.encode(), c.record.encode()) || c.record.empty() {
		return nil // nothing to drop: only the safe point would change
	}
	_, err := p.apply(ctx, []*cell{c}, false, func(r record, _ string) (record, answer) { return collect(r, safe) })
	return err
}
