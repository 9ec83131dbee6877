package semaphore

import (
	"context"
	"errors"
	"slices"
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

// Permits are several held slots of one name. Each can end separately: a holder that needs all
// of them watches the context of each, or calls [Permits.Valid].
type Permits []*Permit

// Valid reports whether all permits are valid, by the current clock.
func (p Permits) Valid() bool {
	return !slices.ContainsFunc(p, func(one *Permit) bool { return !one.Valid() })
}

// Release releases all permits; see [Permit.Release]. It returns the errors joined.
func (p Permits) Release(ctx context.Context) error {
	var claims lock.Claims
	for _, one := range p {
		claims = append(claims, one.own)
	}
	return claims.Release(ctx)
}

// lost releases the permits that ended while others were waited for, and returns the rest.
func (p Permits) lost(ctx context.Context) (rest Permits, err error) {
	for _, one := range p {
		if one.Valid() {
			rest = append(rest, one)
			continue
		}
		err = errors.Join(err, one.Release(ctx))
	}
	return rest, err
}
