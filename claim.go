package interlock

import (
	"context"
	"time"
)

// A Claim is a proof, ordered by a token, that its holder may act. Locks,
// leaderships and ownerships are claims. Its methods do not block and are safe
// for concurrent use.
//
// A claim can end at any instant, also between Valid and the next statement:
// hand its token to a guard instead of trusting the answer.
type Claim interface {
	// Name is what is claimed, as the user wrote it.
	Name() string
	// Owner identifies this holding, for people: who, and a part unique to it.
	Owner() string
	// Token orders this claim among all claims on the name.
	Token() Token
	// Context ends when the claim does, with one of the causes in errors.go, or
	// before that with the context of the call that made the claim, if the claim
	// was made for that call only.
	Context() context.Context
	// Remaining is how long the claim is still good for, on a clock that also
	// counts while the machine sleeps. Zero or less means it has ended.
	Remaining() time.Duration
	// Valid compares the clock on the spot. It can say false before the
	// claim's context ends, because after a stop user code may run before the
	// timer that ends it.
	Valid() bool
}
