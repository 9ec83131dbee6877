package driver

import (
	"context"
	"fmt"
)

// Bounds of [KeyValues].
const (
	MaxKeyValue = 512 << 10 // bytes of one value
	MaxSwaps    = 64        // swaps in one step
)

// A KeyValue is the value of one key at one revision.
type KeyValue struct {
	Key   string
	Value []byte
	// Revision identifies this state of the key: no other state of it, before or after,
	// has the same. It is above zero; 0 means that the key has no value.
	Revision int64
}

// A Swap replaces the value of one key.
type Swap struct {
	Key      string // 1 to MaxName bytes of UTF-8 without NUL
	Revision int64  // that the key must have; 0: it must have no value
	Value    []byte // at most MaxKeyValue bytes
	Delete   bool   // remove the key, which must have a value; Value is ignored
}

// CheckSwaps returns what is wrong with the swaps of one step; nil is nothing.
func CheckSwaps(swaps []Swap) error {
	if len(swaps) == 0 || len(swaps) > MaxSwaps {
		return fmt.Errorf("%d swaps in one step, 1 to %d are allowed", len(swaps), MaxSwaps)
	}
	seen := map[string]bool{}
	for _, s := range swaps {
		switch {
		case s.Revision < 0 || s.Delete && s.Revision == 0:
			return fmt.Errorf("key %q: a swap of revision %d", s.Key, s.Revision)
		case len(s.Value) > MaxKeyValue:
			return fmt.Errorf("key %q: the value has %d bytes, at most %d are allowed", s.Key, len(s.Value), MaxKeyValue)
		case seen[s.Key]:
			return fmt.Errorf("key %q comes twice in one step", s.Key)
		}
		if err := CheckText("a key", s.Key, 1, MaxName); err != nil {
			return err
		}
		seen[s.Key] = true
	}
	return nil
}

// KeyValues is a key-value store with compare-and-swap. All keys of one KeyValues are one
// atomic domain. It retries nothing.
type KeyValues interface {
	// Get reads keys, in their order, by one request. Each is as it is at some instant
	// during the call, never older; instants of several keys may differ. A key of other
	// than 1 to MaxName bytes of UTF-8 without NUL is a Bug.
	Get(ctx context.Context, keys ...string) ([]KeyValue, error)
	// Swap makes all swaps in one atomic step if every key has the revision that its swap
	// names, and returns the revision that all keys with a new value have now; otherwise
	// it makes none and returns 0. It is one request. After an Uncertain error the caller
	// reads the keys to find out. What [CheckSwaps] refuses is a Bug.
	Swap(ctx context.Context, swaps ...Swap) (revision int64, err error)
	// Scan reads up to limit keys with from ≤ key < to, in ascending order of their
	// bytes; an empty to is no bound. Each is as Get would return it.
	Scan(ctx context.Context, from, to string, limit int) ([]KeyValue, error)
}
