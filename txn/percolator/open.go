package percolator

import (
	"cmp"
	"context"
	crand "crypto/rand"
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
	// DefaultTTL is how long a dead process keeps its locks if Options do not say.
	DefaultTTL = 3 * time.Second
	// MaxAge is how old a transaction can be when it commits.
	MaxAge = time.Hour
	// MaxKey is the length of a key, in bytes.
	MaxKey = driver.MaxName - len(dataPrefix)
	// MaxValue is the length of a value, in bytes.
	MaxValue = driver.MaxValue
	// MaxKeys is how many keys a transaction can write.
	MaxKeys = 4096

	dataPrefix  = "data:"
	identityKey = "percolator:store"
	// cleanTimeout bounds what goes on after the caller's context ended.
	cleanTimeout = 10 * time.Second
	maxAttempts  = 8 // of one request
)

var (
	requests     = backoff.Policy{First: 5 * time.Millisecond, Max: 500 * time.Millisecond}
	transactions = backoff.Policy{First: 5 * time.Millisecond, Max: time.Second}
	waits        = backoff.Policy{First: 5 * time.Millisecond, Max: 200 * time.Millisecond}

	errNoTime = errors.New("the stores did not answer in time")
)

// Stores says where keys are: in the store of the longest prefix that a key begins with.
// All processes need the same. A store may have several prefixes.
type Stores map[string]driver.KeyValues

// Options of a [DB]; nil and the zero value work.
type Options struct {
	// TTL is how long a process that died keeps its locks, from 100 ms to a minute;
	// 0 means [DefaultTTL]. While a commit is under way its locks are renewed.
	TTL time.Duration
	// Serializable makes transactions that write serializable: what they read is
	// validated before they commit. Otherwise they have snapshot isolation, which allows
	// write skew.
	Serializable bool
}

// DB runs transactions. It is safe for concurrent use.
type DB struct {
	oracle  *timestamp.Oracle
	places  []place // longest prefix first
	options Options
	pending sync.WaitGroup // commits of secondaries
}

// A place is a prefix of keys and its store.
type place struct {
	prefix string
	store  driver.KeyValues
	id     string // identity, which the store keeps
}

// Open opens the stores, whose timestamps come from oracle. It reads the identity of each
// store, and gives one to a new store. Impossible options and stores are a Bug.
func Open(ctx context.Context, oracle *timestamp.Oracle, stores Stores, o *Options) (*DB, error) {
	const op = "open percolator"
	db := &DB{oracle: oracle}
	if o != nil {
		db.options = *o
	}
	db.options.TTL = cmp.Or(db.options.TTL, DefaultTTL)
	switch {
	case oracle == nil || len(stores) == 0:
		return nil, failed(op, "", interlock.Bug, errors.New("it needs an oracle and a store"))
	case db.options.TTL < 100*time.Millisecond || db.options.TTL > time.Minute:
		return nil, failed(op, "", interlock.Bug, fmt.Errorf("a TTL of %v, from 100 ms to a minute is allowed", db.options.TTL))
	}
	for prefix, store := range stores {
		if store == nil {
			return nil, failed(op, prefix, interlock.Bug, errors.New("there is no store for this prefix"))
		}
		id, err := identify(ctx, store)
		if err != nil {
			return nil, err
		}
		db.places = append(db.places, place{prefix, store, id})
	}
	slices.SortFunc(db.places, func(a, b place) int {
		return cmp.Or(len(b.prefix)-len(a.prefix), strings.Compare(a.prefix, b.prefix))
	})
	return db, nil
}

// identify reads the identity of a store, and creates it if there is none.
func identify(ctx context.Context, store driver.KeyValues) (id string, err error) {
	err = persist(ctx, func() error {
		kvs, err := store.Get(ctx, identityKey)
		if err != nil {
			return err
		}
		if id = string(kvs[0].Value); kvs[0].Revision > 0 {
			return nil
		}
		id = crand.Text()
		revision, err := store.Swap(ctx, driver.Swap{Key: identityKey, Value: []byte(id)})
		if err == nil && revision == 0 {
			err = failed("open percolator", "", interlock.Retryable, errors.New("another process opens the store"))
		}
		return err
	})
	return id, err
}

// Close waits until the secondaries of all committed transactions are committed, or ctx
// ends; then readers commit them. The stores stay open.
func (db *DB) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		db.pending.Wait() // each ends after cleanTimeout
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return failed("close percolator", "", interlock.Definite, context.Cause(ctx))
	}
}

// place is where a key is.
func (db *DB) place(op, key string) (int, error) {
	for i, p := range db.places {
		if strings.HasPrefix(key, p.prefix) {
			return i, nil
		}
	}
	return 0, failed(op, key, interlock.Bug, fmt.Errorf("%w: no prefix fits the key", ErrStores))
}

// now is a timestamp.
func (db *DB) now(ctx context.Context) (at Timestamp, err error) {
	err = persist(ctx, func() error {
		at, err = db.oracle.Next(ctx)
		return err
	})
	return at, err
}

// persist repeats what is Retryable or Uncertain, which must converge.
func persist(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		kind := interlock.Kind(err)
		if err == nil || kind != interlock.Retryable && kind != interlock.Uncertain || n == maxAttempts || !requests.Wait(ctx, n) {
			return err
		}
	}
}
