package percolator

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

const (
	// DefaultTTL is the default of Options.TTL.
	DefaultTTL = 3 * time.Second
	// MaxAge is the maximum age of a transaction at its commit.
	MaxAge = time.Hour
	// MaxKey is the maximum length of a key, in bytes.
	MaxKey = driver.MaxName - len(dataPrefix)
	// MaxValue is the maximum length of a value, in bytes.
	MaxValue = driver.MaxValue
	// MaxKeys is the maximum number of keys that a transaction writes.
	MaxKeys = 4096

	dataPrefix  = "data:"
	identityKey = "percolator:store"
	// cleanTimeout bounds work after the caller's context has ended.
	cleanTimeout = 10 * time.Second
	maxTurn      = time.Second // of a commit among those of its process
	maxAttempts  = 8           // of one request
)

var (
	requests     = backoff.Policy{First: 5 * time.Millisecond, Max: 500 * time.Millisecond}
	transactions = backoff.Policy{First: 5 * time.Millisecond, Max: time.Second}
	waits        = backoff.Policy{First: 5 * time.Millisecond, Max: 200 * time.Millisecond}

	errNoTime = errors.New("the stores did not answer in time")
)

// Stores maps prefixes to stores. A key is in the store of its longest prefix. All processes
// must map a prefix to the same store: Open refuses others. A store may have several prefixes.
type Stores map[string]driver.KeyValues

// Options of a [DB]; nil and the zero value work.
type Options struct {
	// TTL is the lease duration of the locks of a dead process, from 100 ms to a minute;
	// 0 means [DefaultTTL]. A running commit renews its locks.
	TTL time.Duration
	// Serializable makes transactions that write serializable: they validate their reads
	// before they commit. Otherwise they have snapshot isolation, which allows write skew.
	Serializable bool
}

// DB runs transactions. It is safe for concurrent use.
type DB struct {
	oracle  *timestamp.Oracle
	places  []place // longest prefix first
	options Options
	turns   turns    // of commits that write the same keys
	pending sync.Map // contexts of running commits of secondaries
}

// A place is a prefix of keys and its store.
type place struct {
	prefix string
	store  driver.KeyValues
	id     string // identity, which the store keeps
}

// Open opens the stores, with timestamps from oracle. It reads each store's identity and its
// mapping of prefixes to stores, and adds new ones. If a prefix was mapped to another store
// before, it fails with ErrStores. Invalid options and stores are a Bug.
func Open(ctx context.Context, oracle *timestamp.Oracle, stores Stores, o *Options) (*DB, error) {
	const op = "open percolator"
	db := &DB{oracle: oracle, turns: turns{keys: map[string]*turn{}}}
	if o != nil {
		db.options = *o
	}
	db.options.TTL = cmp.Or(db.options.TTL, DefaultTTL)
	switch {
	case oracle == nil || len(stores) == 0:
		return nil, failed(op, "", interlock.Bug, errors.New("an oracle and a store are required"))
	case db.options.TTL < 100*time.Millisecond || db.options.TTL > time.Minute:
		return nil, failed(op, "", interlock.Bug, fmt.Errorf("a TTL of %v, from 100 ms to a minute is allowed", db.options.TTL))
	}
	var all []*mapping
	for prefix, store := range stores {
		if store == nil {
			return nil, failed(op, prefix, interlock.Bug, errors.New("there is no store for this prefix"))
		}
		m, err := identify(ctx, store)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
		db.places = append(db.places, place{prefix, store, m.ID})
	}
	slices.SortFunc(db.places, func(a, b place) int {
		return cmp.Or(len(b.prefix)-len(a.prefix), strings.Compare(a.prefix, b.prefix))
	})
	for _, m := range all {
		if err := m.agree(ctx, db.places); err != nil {
			return nil, err
		}
	}
	return db, nil
}

// A mapping is a store's list of all stores. It reveals processes that map a prefix to
// different stores.
type mapping struct {
	Format int               `json:"format"` // documentFormat
	ID     string            `json:"id"`     // identity of this store
	Stores map[string]string `json:"stores"` // prefixes, and identities of their stores

	store    driver.KeyValues
	revision int64
}

// identify reads the mapping of a store, with a new identity if the store has none.
func identify(ctx context.Context, store driver.KeyValues) (m *mapping, err error) {
	err = persist(ctx, func() error {
		m = &mapping{Format: documentFormat, store: store}
		kvs, err := store.Get(ctx, identityKey)
		if err != nil {
			return err
		}
		if m.revision = kvs[0].Revision; m.revision > 0 {
			if json.Unmarshal(kvs[0].Value, m) != nil || m.Format != documentFormat {
				return failed("open percolator", identityKey, interlock.Definite, errFormat)
			}
			return nil
		}
		m.ID = crand.Text()
		return m.write(ctx)
	})
	return m, err
}

func (m *mapping) write(ctx context.Context) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	revision, err := m.store.Swap(ctx, driver.Swap{Key: identityKey, Revision: m.revision, Value: text})
	if err == nil && revision == 0 {
		err = failed("open percolator", "", interlock.Retryable, errors.New("another process opens the store"))
	}
	m.revision = revision
	return err
}

// agree adds places to the mapping. It fails if a key would move to another store: values written
// under one mapping would be missing under the other.
func (m *mapping) agree(ctx context.Context, places []place) error {
	read := true
	return persist(ctx, func() error {
		if !read {
			now, err := identify(ctx, m.store)
			if err != nil {
				return err
			}
			*m = *now
		}
		read = false
		var before []place
		for prefix, id := range m.Stores {
			before = append(before, place{prefix: prefix, id: id})
		}
		for _, p := range slices.Concat(before, places) {
			was, now := owner(before, p.prefix), owner(places, p.prefix)
			if was != "" && now != "" && was != now {
				return failed("open percolator", p.prefix, interlock.Definite,
					fmt.Errorf("%w: the prefix %q was opened with another store before", ErrStores, p.prefix))
			}
		}
		if !slices.ContainsFunc(places, func(p place) bool { return m.Stores[p.prefix] != p.id }) {
			return nil
		}
		all := map[string]string{}
		for _, p := range slices.Concat(before, places) {
			all[p.prefix] = p.id
		}
		m.Stores = all
		return m.write(ctx)
	})
}

// owner returns the identity of the store that has a key; empty if there is none.
func owner(places []place, key string) string {
	prefix, id := -1, ""
	for _, p := range places {
		if len(p.prefix) > prefix && strings.HasPrefix(key, p.prefix) {
			prefix, id = len(p.prefix), p.id
		}
	}
	return id
}

// Close waits until the secondaries of all committed transactions are committed, or ctx
// ends; then readers commit the rest. The stores stay open, and db can be used.
func (db *DB) Close(ctx context.Context) (err error) {
	db.pending.Range(func(running, _ any) bool {
		select {
		case <-running.(context.Context).Done(): // at the latest after cleanTimeout
		case <-ctx.Done():
			err = failed("close percolator", "", interlock.Definite, context.Cause(ctx))
		}
		return err == nil
	})
	return err
}

// place returns the index of a key's place.
func (db *DB) place(op, key string) (int, error) {
	for i, p := range db.places {
		if strings.HasPrefix(key, p.prefix) {
			return i, nil
		}
	}
	return 0, failed(op, key, interlock.Bug, fmt.Errorf("%w: no prefix fits the key", ErrStores))
}

// now returns a timestamp.
func (db *DB) now(ctx context.Context) (at Timestamp, err error) {
	err = persist(ctx, func() error {
		at, err = db.oracle.Next(ctx)
		return err
	})
	return at, err
}

// persist repeats try after Retryable or Uncertain errors. try must be idempotent.
func persist(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		kind := interlock.Kind(err)
		if err == nil || kind != interlock.Retryable && kind != interlock.Uncertain || n == maxAttempts || !requests.Wait(ctx, n) {
			return err
		}
	}
}
