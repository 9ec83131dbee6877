package semaphore

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
)

// Permit is a held slot of a name. It is safe for concurrent use.
type Permit struct {
	name string
	slot int
	own  *lock.Claim
}

// Name returns the name as the caller wrote it.
func (p *Permit) Name() string { return p.name }

// Slot returns the index of the permit's slot, from 0.
func (p *Permit) Slot() int { return p.slot }

// Claim returns the claim on the slot. Its token orders the holders of this slot only. Pass it
// to a guard together with [Permit.Resource], which is its name.
func (p *Permit) Claim() interlock.Claim { return p.own }

// Resource returns the name of the mark that a guard should use for this slot. Each slot has
// its own.
func (p *Permit) Resource() string { return p.own.Name() }

// Owner returns the holder of the slot as the backend shows it.
func (p *Permit) Owner() string { return p.own.Owner() }

// Context returns a context that ends, with its cause, when the permit does.
func (p *Permit) Context() context.Context { return p.own.Context() }

// Remaining returns how long the permit is still valid; 0 or less once it has ended.
func (p *Permit) Remaining() time.Duration { return p.own.Remaining() }

// Valid reports whether the permit is valid, by the current clock.
func (p *Permit) Valid() bool { return p.own.Valid() }

// Renew renews the permit of a semaphore with lock.Options.NoRenewal; see
// [lock.Claim.Renew].
func (p *Permit) Renew(ctx context.Context) error { return p.own.Renew(ctx) }

// Release releases the permit; see [lock.Claim.Release].
func (p *Permit) Release(ctx context.Context) error { return p.own.Release(ctx) }
