package semaphore

import (
	"context"
	"errors"
	"slices"
)

// Permits are several slots of one name, held at once. Each ends by itself: a
// holder that needs all of them watches the context of each, or [Permits.Valid].
type Permits []*Permit

// Valid reports whether all of them are, by the clock on the spot.
func (p Permits) Valid() bool {
	return !slices.ContainsFunc(p, func(one *Permit) bool { return !one.Valid() })
}

// Release gives all of them up; see [Permit.Release]. Its error joins those that
// failed.
func (p Permits) Release(ctx context.Context) error {
	var failed []error
	for _, one := range p {
		failed = append(failed, one.Release(ctx))
	}
	return errors.Join(failed...)
}

// lost gives up those that ended while others were waited for, and returns the
// rest.
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
