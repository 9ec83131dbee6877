package driver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Delivery is one attempt to have the effect of a message.
type Delivery struct {
	Consumer string // whose effect it is; 1 to 255 bytes
	ID       string // of the message; 1 to 255 bytes
	Hash     []byte // SHA-256 of its payload
	Owner    string // of this attempt, unique for all time; 1 to 255 bytes
}

// Check finds what no store may be asked, which is a Bug.
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

// Claimed is what a delivery finds.
type Claimed int

const (
	// Unclaimed comes with an error.
	Unclaimed Claimed = iota
	// ClaimedNow: the effect is this delivery's to make.
	ClaimedNow
	// ClaimedDone: it was made before.
	ClaimedDone
	// ClaimedOther: the message is, or was, claimed with another hash.
	ClaimedOther
)

// MaxKeep is the longest lease, and the longest time to keep what was done.
const MaxKeep = 10 * 365 * 24 * time.Hour

// Once remembers which messages a consumer has had, in a store where the effect
// itself is not. Times are those of the store's clock. A lease or a time to keep
// that is below a millisecond or above [MaxKeep] is a Bug.
type Once interface {
	// Claim takes a message for d.Owner, for as long as lease, unless it is done or
	// taken, in one atomic step. While another owner has it the error is a
	// *interlock.HeldError. The same owner may repeat it, after an Uncertain answer
	// or to have a new lease: it gets ClaimedNow, or ClaimedDone after Done.
	Claim(ctx context.Context, d Delivery, lease time.Duration) (Claimed, error)
	// Done records that the effect was made, and keeps that for so long. It does so
	// also if the lease is over and nobody has claimed the message since; if
	// somebody has, it changes nothing and the error is an interlock.ErrLost,
	// Definite. Repeating it converges.
	Done(ctx context.Context, d Delivery, keep time.Duration) error
	// Forget gives up the claim of d.Owner, so that the message can be claimed at
	// once. It changes nothing if d.Owner has none, or is done. Repeating it
	// converges.
	Forget(ctx context.Context, d Delivery) error
}
