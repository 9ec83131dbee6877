package driver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Delivery is one attempt to apply the effect of a message.
type Delivery struct {
	Consumer string // the consumer that applies the effect; 1 to 255 bytes
	ID       string // of the message; 1 to 255 bytes
	Hash     []byte // SHA-256 of its payload
	Owner    string // of this attempt, never used again; 1 to 255 bytes
}

// Check returns a Bug if a field is empty or too long, or Hash is not a SHA-256.
func (d Delivery) Check() error {
	for _, n := range []struct{ what, name string }{{"consumer", d.Consumer}, {"message id", d.ID}, {"owner", d.Owner}} {
		if n.name == "" || len(n.name) > 255 {
			return &interlock.Error{Op: "use " + n.what, Name: n.name, Kind: interlock.Bug,
				Err: fmt.Errorf("%w: it has 1 to 255 bytes, not %d", interlock.ErrName, len(n.name))}
		}
	}
	if len(d.Hash) != sha256.Size {
		return &interlock.Error{Op: "claim message", Name: d.ID, Kind: interlock.Bug,
			Err: fmt.Errorf("its hash has %d bytes, not %d", len(d.Hash), sha256.Size)}
	}
	return nil
}

// Claimed is the result of a claim.
type Claimed int

const (
	// Unclaimed is returned with an error.
	Unclaimed Claimed = iota
	// ClaimedNow means that this delivery must apply the effect.
	ClaimedNow
	// ClaimedDone means that the effect was applied before.
	ClaimedDone
	// ClaimedOther means that the message was claimed with another hash.
	ClaimedOther
)

// MaxKeep is the longest lease, and the longest time to keep a record.
const MaxKeep = 10 * 365 * 24 * time.Hour

// Once records which messages a consumer has processed, in a store that does not hold the
// effect itself. Times are by the store's clock. If a lease or a time to keep is below a
// millisecond or above [MaxKeep], the error is a Bug.
type Once interface {
	// Claim claims a message for d.Owner for the duration of lease, in one atomic step. If
	// another owner has a claim, the error is a *interlock.HeldError. If the effect is done,
	// the result is ClaimedDone. The same owner may repeat Claim, after an Uncertain error or
	// for a new lease: the result is ClaimedNow, or ClaimedDone after Done.
	Claim(ctx context.Context, d Delivery, lease time.Duration) (Claimed, error)
	// Done records that the effect was applied, and keeps the record for keep. It succeeds even
	// if the lease has expired, provided that no other owner has claimed the message since. If
	// one has, Done changes nothing and returns a Definite interlock.ErrLost. Repeating it
	// converges.
	Done(ctx context.Context, d Delivery, keep time.Duration) error
	// Forget ends the claim of d.Owner, so that the message can be claimed at once. If d.Owner
	// has no claim, or the effect is done, it changes nothing. Repeating it converges.
	Forget(ctx context.Context, d Delivery) error
}
