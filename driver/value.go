package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// MaxValue is the maximum length of a value that a portable type passes to a driver, in bytes.
const MaxValue = 64 << 10

// A Value is the data that the holder of a claim has written under the claim's name.
type Value struct {
	Data    []byte
	Token   interlock.Token // of the write; 0 if nothing was ever written
	Source  string          // the writer, for people
	Written time.Time       // by the store's clock; zero if not known
}

// Values stores one small value for each name. A stale token cannot write it.
type Values interface {
	// Put stores v.Data under name (1 to MaxName bytes) unless v.Token is below the stored
	// token. The check and the write are one atomic step. An equal token replaces the data. A
	// lower token is refused with a *interlock.StaleTokenError. If a token's counter is more
	// than interlock.MaxAhead ahead of the store's clock, it is refused with
	// interlock.ErrImplausibleToken. Repeating Put after an Uncertain error converges.
	Put(ctx context.Context, name string, v Value) error
	// Get returns the value at some instant during the call, never an older one. If nothing was
	// written under the name, it returns the zero Value.
	Get(ctx context.Context, name string) (Value, error)
	// Watch calls each with the current value, then with later ones, until ctx ends. Values
	// that are replaced quickly may be skipped. Tokens never decrease, and values of one token
	// come in the order of their writes. The last value written is always delivered, even after
	// an interruption.
	//
	// Watch blocks. It returns the cause of ctx, or a Retryable error if it cannot watch; then
	// it may be called again. Calls of each come from one goroutine at a time, and none comes
	// after Watch has returned.
	Watch(ctx context.Context, name string, each func(Value)) error
}

// Limits of [KeyValues].
const (
	MaxKeyValue = 512 << 10 // bytes of one value
	MaxSwaps    = 64        // swaps in one step
)

// A KeyValue is the value of one key at one revision.
type KeyValue struct {
	Key   string
	Value []byte // the caller's own
	// Revision identifies this state of the key: no earlier or later state has the same. It is
	// above zero; 0 means that the key has no value.
	Revision int64
}

// A Swap is a conditional write of one key.
type Swap struct {
	Key      string // 1 to MaxName bytes of UTF-8 without NUL
	Revision int64  // the expected revision; 0 means that the key must not exist
	Value    []byte // at most MaxKeyValue bytes
	Delete   bool   // remove the key, which must have a value; Value is ignored
}

// CheckSwaps returns an error if the swaps of one step are invalid.
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

// KeyValues is a key-value store with compare-and-swap. All keys of one KeyValues form one
// atomic domain. It never retries.
type KeyValues interface {
	// Get reads keys in one request and returns them in the same order. Each value is current
	// at some instant during the call; these instants may differ between keys. If a key is not
	// 1 to MaxName bytes of UTF-8 without NUL, the error is a Bug.
	Get(ctx context.Context, keys ...string) ([]KeyValue, error)
	// Swap applies all swaps in one atomic step if every key has its expected revision. It
	// returns the new revision of all keys that have a value now. If a revision differs, it
	// changes nothing and returns 0. It is one request. After an Uncertain error the caller
	// reads the keys to find the outcome. If [CheckSwaps] fails, the error is a Bug.
	Swap(ctx context.Context, swaps ...Swap) (revision int64, err error)
	// Scan reads up to limit keys with from ≤ key < to, in ascending byte order. An empty to
	// means no upper bound. Bounds are UTF-8 and may contain NUL, so that k+"\x00" is right
	// behind k. Each key is read as by Get.
	Scan(ctx context.Context, from, to string, limit int) ([]KeyValue, error)
}
