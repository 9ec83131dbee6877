package semaphore

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
)

// Permit is one slot of a name, held. It is safe for concurrent use.
type Permit struct {
	name string
	slot int
	own  *lock.Claim
}

// Name is what is permitted, as the user wrote it.
func (p *Permit) Name() string { return p.name }

// Slot is which of the permits this is, from 0.
func (p *Permit) Slot() int { return p.slot }

// Claim is that on the slot. Its token orders the holders of the slot, and says
// nothing about those of other slots: give it to a guard together with
// [Permit.Resource], which is its name.
func (p *Permit) Claim() interlock.Claim { return p.own }

// Resource is what a guard should keep the mark of this permit's holders under,
// a text of its own for each slot.
func (p *Permit) Resource() string { return p.own.Name() }

// Owner is what the backend shows as the holder of the slot.
func (p *Permit) Owner() string { return p.own.Owner() }

// Context ends, with its cause, when the permit does.
func (p *Permit) Context() context.Context { return p.own.Context() }

// Remaining is how long the permit is still good for; 0 or less once it ended.
func (p *Permit) Remaining() time.Duration { return p.own.Remaining() }

// Valid compares the clock on the spot.
func (p *Permit) Valid() bool { return p.own.Valid() }

// Renew renews the permit of a semaphore with lock.Options.NoRenewal; see
// [lock.Claim.Renew].
func (p *Permit) Renew(ctx context.Context) error { return p.own.Renew(ctx) }

// Release gives the permit up; see [lock.Claim.Release].
func (p *Permit) Release(ctx context.Context) error { return p.own.Release(ctx) }
