package semaphore

import (
	"context"
	"errors"
	"slices"

	"github.com/interlock-dev/interlock/claim/lock"
)

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
