package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// MaxValue is the longest value, in bytes, that a portable type passes down.
const MaxValue = 64 << 10

// A Value is what the holder of a claim has written under the claim's name.
type Value struct {
	Data    []byte
	Token   interlock.Token // that it was written with; 0 if nothing was ever written
	Source  string          // who wrote it, for people
	Written time.Time       // when, by the store's clock; zero if not known
}

// Values keeps one small value for each name, which a stale token cannot write.
type Values interface {
	// Put stores v.Data under name (1 to MaxName bytes) if v.Token is not below
	// the token that is stored there, in one atomic step with that check. A
	// lower one is refused with a *interlock.StaleTokenError; one whose counter
	// lies more than interlock.MaxAhead beyond the store's clock is refused
	// with interlock.ErrImplausibleToken; an equal one replaces the data.
	// Repeating it after an Uncertain answer converges.
	Put(ctx context.Context, name string, v Value) error
	// Get reads the value as it is at some instant during the call, never an
	// older one. A name that nothing was written under has the zero Value.
	Get(ctx context.Context, name string) (Value, error)
	// Watch calls each with the value as it is, then with every later one it
	// sees, until ctx ends. Values that are replaced quickly may be skipped;
	// tokens never fall from one call to the next, and of one token's values a
	// later one is never followed by an earlier one. The last value written is
	// always seen in the end, also over an interruption.
	//
	// It blocks until it returns ctx's cause, or why it cannot watch
	// (Retryable: it may be called again). Calls of each come from one goroutine
	// at a time and none after it returned.
	Watch(ctx context.Context, name string, each func(Value)) error
}
