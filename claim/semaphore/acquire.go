package semaphore

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/join"
)

// Do waits for a permit of name, runs fn, and gives the permit up when fn has
// returned or panicked, whatever became of ctx.
//
// The context that fn gets ends with ctx, or when the permit ends. If that
// happened before fn returned, Do's error says so, beside fn's own. If fn was
// not run, the error is interlock.ErrHeld (Options.Lock.Wait has passed),
// [ErrSize], that of ctx, or that of the backend. Who asks for a second permit
// inside fn can wait for others who do the same.
func (s *Semaphore) Do(ctx context.Context, name string, fn func(ctx context.Context, p *Permit) error) (err error) {
	p, err := s.Acquire(ctx, name)
	if err != nil {
		return err
	}
	working, stop := join.Context(ctx, p.Context())
	defer func() {
		stop()
		_ = p.Release(ctx) // Hooks.ReleaseFailed tells
		if cause := context.Cause(p.Context()); cause != interlock.ErrReleased {
			err = errors.Join(err, &interlock.Error{Op: "hold a permit until the work was done of", Driver: s.driver,
				Name: name, Kind: interlock.Uncertain, Err: cause})
		}
	}()
	return fn(working, p)
}

// Acquire waits for a permit of name, or until ctx ends. The permit does not end
// with ctx; it must be released. Errors are those of [Semaphore.Do].
func (s *Semaphore) Acquire(ctx context.Context, name string) (*Permit, error) {
	return s.acquire(ctx, name, s.locks.Acquire, s.await)
}

// TryAcquire takes a permit if one is free and nobody waits, and returns an
// [*interlock.HeldError] otherwise. It blocks only for the backend's answers. It
// may also be refused because somebody else stands in the door at that moment.
func (s *Semaphore) TryAcquire(ctx context.Context, name string) (*Permit, error) {
	return s.acquire(ctx, name, s.locks.TryAcquire, s.once)
}

type (
	take func(ctx context.Context, name string) (*lock.Claim, error)
	// choose finds a free slot, for one who stands in the door.
	choose func(ctx context.Context, n names) (*Permit, error)
)

func (s *Semaphore) acquire(ctx context.Context, name string, door take, choose choose) (p *Permit, err error) {
	n, err := s.names(name)
	if err != nil {
		return nil, s.fail(ctx, name, err)
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if s.wait > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, s.wait, &interlock.HeldError{Name: name})
	}
	defer cancel()
	for { // whose turn in the door has run out comes back
		p, err = inDoor(bounded, n, door, choose)
		switch {
		case err == nil:
			return p, nil
		case bounded.Err() != nil || !errors.Is(err, errTurnOver):
			return nil, s.fail(ctx, name, err)
		}
	}
}

// errTurnOver: the claim on the door ended before a slot was free.
var errTurnOver = &interlock.Error{Op: "stand in the door", Kind: interlock.Retryable,
	Err: errors.New("the claim on it ended before a permit was free")}

// inDoor chooses a slot while nobody else does. A slot that was taken is ours
// even if our turn has ended meanwhile: only the order depends on the door.
func inDoor(ctx context.Context, n names, take take, choose choose) (*Permit, error) {
	door, err := take(ctx, n.door)
	if err != nil {
		return nil, err
	}
	defer func() { _ = door.Release(ctx) }() // Hooks.ReleaseFailed tells
	waiting, stop := join.Context(ctx, door.Context())
	defer stop()
	p, err := choose(waiting, n)
	if err != nil && !door.Valid() && ctx.Err() == nil {
		err = errTurnOver
	}
	return p, err
}

// once takes a slot if one is free now.
func (s *Semaphore) once(ctx context.Context, n names) (*Permit, error) {
	return s.try(ctx, n, s.anyOrder())
}

// try takes the first of slots that nobody holds. Those that this process holds
// cost no request.
func (s *Semaphore) try(ctx context.Context, n names, slots []int) (p *Permit, err error) {
	for _, i := range slots {
		own, err := s.locks.TryAcquire(ctx, n.slot(i))
		if err == nil {
			return &Permit{name: n.name, slot: i, own: own}, nil
		}
		if !errors.Is(err, interlock.ErrHeld) {
			return nil, err
		}
	}
	return nil, &interlock.HeldError{Name: n.name}
}
