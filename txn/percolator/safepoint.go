package percolator

import (
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
