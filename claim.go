package interlock

import (
	"context"
	"time"
)

// A Claim is the right of its holder to act under a name, with a token that orders it. Locks,
// leaderships and partitions are claims. Its methods do not block and are safe for concurrent
// use.
//
// A claim can end at any instant, also between Valid and the next statement. So pass its token
// to a guard instead of relying on Valid.
type Claim interface {
	// Name returns the claimed name, as the caller wrote it.
	Name() string
	// Owner identifies this claim, for people: the holder, and a part unique to the claim.
	Owner() string
	// Token orders this claim among all claims on the name.
	Token() Token
	// Context ends when the claim does, with one of the causes in errors.go. If the claim was
	// acquired for one call only, it may end earlier, with the context of that call.
	Context() context.Context
	// Remaining returns how long the claim is still valid, on a clock that also counts while
	// the machine sleeps. Zero or less means that it has ended.
	Remaining() time.Duration
	// Valid reports whether the claim is valid, by the current clock. It can return false
	// before the claim's context ends: after a pause, user code may run before the timer that
	// ends the context.
	Valid() bool
}
