package lock

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// Claim is a held lock with a token. It is an [interlock.Claim].
type Claim struct{ claim }

var _ interlock.Claim = (*Claim)(nil)

// Token orders this claim among all claims on the name.
func (c *Claim) Token() interlock.Token { return c.h.token }

// AdvisoryClaim is a held lock without a token. It protects nothing.
type AdvisoryClaim struct{ claim }

// claim is what both kinds have in common.
type claim struct {
	h      *hold
	shared bool // it was acquired by a caller further up
}

// Name is what is held.
func (c claim) Name() string { return c.h.gate.name }

// Owner is what the backend shows as the holder. Claims that were passed on
// inside the process share it; their tokens differ.
func (c claim) Owner() string { return c.h.place.owner }

// Remaining is how long the claim is still good for; 0 or less once it ended.
func (c claim) Remaining() time.Duration { return c.h.remaining() }

// Valid compares the clock on the spot.
func (c claim) Valid() bool { return c.h.remaining() > 0 }

// Context descends from the context of the call that acquired the claim and
// ends, with its cause, when the claim does.
func (c claim) Context() context.Context { return c.h.ctx }

// Extend lets a claim with Options.MaxHold be held for d from now, however much was
// left. It asks nobody: the lease is renewed apart from that. So MaxHold with Extend
// is a hold for a fixed time that only the holder prolongs. It is Definite, with the
// cause, if the claim has ended, and a Bug without MaxHold.
func (c claim) Extend(d time.Duration) error { return c.h.extend(d) }

// Renew asks the backend for another Options.TTL, counted from when the request is
// sent; it is for claims of a lock with Options.NoRenewal, and a Bug for others. It
// retries until ctx or the claim ends. It is Definite, with the cause, if the claim
// has ended or turns out to be lost, which ends it; after any other error the claim is
// good for as long as it was.
func (c claim) Renew(ctx context.Context) error { return c.h.renew(ctx) }

// Release gives the claim up, waits for the backend to confirm that, and
// returns the same answer however often it is called. It ignores the
// cancellation of ctx, has a bound of its own (Options.ReleaseTimeout) and
// retries within it. An error means that the lock may stay taken until it
// expires; the claim has ended all the same. Releasing a claim that was lost
// returns nil at once, and so does releasing one that is shared with a caller
// further up (Options.Reentrant): it stays held.
func (c claim) Release(ctx context.Context) error {
	if c.shared {
		return nil
	}
	return c.h.release(ctx)
}
