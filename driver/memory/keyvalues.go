package memory

import (
	"context"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// KeyValues is a key-value store in memory. It is the executable specification of
// driver.KeyValues: each call is one step under a mutex. Use [NewKeyValues]. It is safe
// for concurrent use.
type KeyValues struct {
	mu       sync.Mutex
	values   map[string]driver.KeyValue
	keys     []string // in order
	revision int64    // of the last swap
}

var _ driver.KeyValues = (*KeyValues)(nil)

// NewKeyValues returns an empty store.
func NewKeyValues() *KeyValues { return &KeyValues{values: map[string]driver.KeyValue{}} }

// Get reads keys; see driver.KeyValues. The caller owns the values.
func (s *KeyValues) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	for _, key := range keys {
		if err := driver.CheckName("get keys", "a key", key, driver.MaxName); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, "get keys", "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	got := make([]driver.KeyValue, len(keys))
	for i, key := range keys {
		got[i] = s.get(key)
	}
	return got, nil
}

// get copies the value. The caller holds the mutex.
func (s *KeyValues) get(key string) driver.KeyValue {
	kv := s.values[key]
	return driver.KeyValue{Key: key, Value: slices.Clone(kv.Value), Revision: kv.Revision}
}

// Swap applies all swaps or none; see driver.KeyValues.
func (s *KeyValues) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	const op = "swap keys"
	if err := driver.CheckSwaps(swaps); err != nil {
		return 0, fail.New(op, "", interlock.Bug, err)
	}
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, op, swaps[0].Key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range swaps {
		if s.values[w.Key].Revision != w.Revision {
			return 0, nil
		}
	}
	s.revision++
	for _, w := range swaps {
		s.swap(w)
	}
	return s.revision, nil
}

// swap applies one swap. The caller holds the mutex.
func (s *KeyValues) swap(w driver.Swap) {
	at, found := slices.BinarySearch(s.keys, w.Key)
	switch {
	case w.Delete:
		delete(s.values, w.Key)
		s.keys = slices.Delete(s.keys, at, at+1)
		return
	case !found:
		s.keys = slices.Insert(s.keys, at, w.Key)
	}
	s.values[w.Key] = driver.KeyValue{Value: append([]byte{}, w.Value...), Revision: s.revision}
}

// Scan reads a range of keys; see driver.KeyValues. The caller owns the values.
func (s *KeyValues) Scan(ctx context.Context, from, to string, limit int) (got []driver.KeyValue, err error) {
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, "scan keys", from)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearch(s.keys, from)
	for _, key := range s.keys[first:] {
		if len(got) >= limit || to != "" && key >= to {
			break
		}
		got = append(got, s.get(key))
	}
	return got, nil
}
