package driver

import (
	"context"
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
