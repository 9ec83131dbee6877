package semaphore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
)

// Do blocks until it has a permit of name, runs fn, and releases the permit. It releases after
// fn has returned or panicked, even if ctx has ended.
//
// The context of fn ends with ctx or with the permit. If the permit ended before fn returned,
// Do returns that error joined with fn's own. If fn was not run, the error is interlock.ErrHeld
// (Options.Lock.Wait has passed), [ErrSize], that of ctx, or that of the backend. Calls of Do
// inside fn can deadlock with others that do the same.
func (s *Semaphore) Do(ctx context.Context, name string, fn func(ctx context.Context, p *Permit) error) (err error) {
	p, err := s.Acquire(ctx, name)
	if err != nil {
		return err
	}
	working, stop := join.Context(ctx, p.Context())
	defer func() {
		stop()
		_ = p.Release(ctx) // Hooks.ReleaseFailed reports errors
		err = s.driver.EndedEarly("hold a permit until the work was done of", name, err, context.Cause(p.Context()))
	}()
	return fn(working, p)
}

// Acquire blocks until it has a permit of name, or ctx ends. The permit does not end with ctx;
// the caller must release it. Its errors are those of [Semaphore.Do].
func (s *Semaphore) Acquire(ctx context.Context, name string) (*Permit, error) {
	return one(s.AcquireN(ctx, name, 1))
}

// AcquireN blocks until it has n permits of name, 1 to [MaxPermits], and otherwise acts like
// [Semaphore.Acquire]. While it waits, it keeps the permits that it has, and all other
// contenders queue after it. If n exceeds the number of permits, the error is [ErrSize].
func (s *Semaphore) AcquireN(ctx context.Context, name string, n int) (Permits, error) {
	return s.acquire(ctx, name, n, s.locks.Acquire, s.await)
}

// TryAcquireN returns n permits if they are free and no other contender waits, and an
// [*interlock.HeldError] otherwise; see [Semaphore.TryAcquire].
func (s *Semaphore) TryAcquireN(ctx context.Context, name string, n int) (Permits, error) {
	return s.acquire(ctx, name, n, s.locks.TryAcquire, s.once)
}

// TryAcquire returns a permit if one is free and no other contender waits, and an
// [*interlock.HeldError] otherwise. It blocks only for the backend's replies. It may also fail
// because another contender holds the door at that moment.
func (s *Semaphore) TryAcquire(ctx context.Context, name string) (*Permit, error) {
	return one(s.TryAcquireN(ctx, name, 1))
}

type (
	take func(ctx context.Context, name string) (*lock.Claim, error)
	// choose acquires free slots while its caller holds the door. If it returns an error, it
	// holds none.
	choose func(ctx context.Context, n names, wanted int) (Permits, error)
)

func one(p Permits, err error) (*Permit, error) {
	if err != nil {
		return nil, err
	}
	return p[0], nil
}

func (s *Semaphore) acquire(ctx context.Context, name string, wanted int, door take, choose choose) (p Permits, err error) {
	n, err := s.names(name)
	if err == nil && (wanted < 1 || wanted > MaxPermits) {
		err = failure.Bug("count", "", "%d permits at once are not allowed", wanted)
	}
	if err != nil {
		return nil, s.fail(ctx, name, err)
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if s.wait > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, s.wait, &interlock.HeldError{Name: name})
	}
	defer cancel()
	for { // if its claim on the door ended, it queues again
		p, err = inDoor(bounded, n, wanted, door, choose)
		switch {
		case err == nil:
			return p, nil
		case bounded.Err() != nil || !errors.Is(err, errTurnOver):
			return nil, s.fail(ctx, name, err)
		}
	}
}

// errTurnOver means that the claim on the door ended before a slot was free.
var errTurnOver = &interlock.Error{Op: "hold the door", Kind: interlock.Retryable,
	Err: errors.New("the claim on it ended before a permit was free")}

// inDoor chooses slots while it holds the door. Acquired slots stay valid even if the claim on
// the door has ended: only the order depends on the door.
func inDoor(ctx context.Context, n names, wanted int, take take, choose choose) (Permits, error) {
	door, err := take(ctx, n.door)
	if err != nil {
		return nil, err
	}
	defer func() { _ = door.Release(ctx) }() // Hooks.ReleaseFailed reports errors
	waiting, stop := join.Context(ctx, door.Context())
	defer stop()
	p, err := choose(waiting, n, wanted)
	if err != nil && !door.Valid() && ctx.Err() == nil {
		err = errTurnOver
	}
	return p, err
}

// once acquires slots if enough are free now.
func (s *Semaphore) once(ctx context.Context, n names, wanted int) (p Permits, err error) {
	size, err := s.room(ctx, n, wanted)
	if err == nil {
		err = s.try(ctx, n, s.anyOrder(size), wanted, &p)
	}
	if err == nil && len(p) < wanted {
		err = &interlock.HeldError{Name: n.name}
	}
	if err != nil {
		_ = p.Release(ctx) // Hooks.ReleaseFailed reports errors
		return nil, err
	}
	return p, nil
}

// try tries to acquire slots until p has the wanted number. Slots that this process holds cost
// no request.
func (s *Semaphore) try(ctx context.Context, n names, slots []int, wanted int, p *Permits) error {
	for _, i := range slots {
		if len(*p) >= wanted {
			return nil
		}
		own, err := s.locks.TryAcquire(ctx, n.slot(i))
		switch {
		case err == nil:
			*p = append(*p, &Permit{name: n.name, slot: i, own: own})
		case !errors.Is(err, interlock.ErrHeld) && !errors.Is(err, interlock.ErrReentered):
			return err
		}
	}
	return nil
}

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
