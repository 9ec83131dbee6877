package rwlock

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/join"
)

// ReadClaim is a share in a name. It has no token, is no interlock.Claim and no
// guard accepts it. It is safe for concurrent use.
type ReadClaim struct {
	name string
	own  *lock.Claim
	ctx  context.Context
}

// Name is what is read, as the user wrote it.
func (r *ReadClaim) Name() string { return r.name }

// Owner is what the backend shows as the holder of this share.
func (r *ReadClaim) Owner() string { return r.own.Owner() }

// Context ends, with its cause, when the claim does.
func (r *ReadClaim) Context() context.Context { return r.ctx }

// Remaining is how long the claim is still good for; 0 or less once it ended.
func (r *ReadClaim) Remaining() time.Duration { return r.own.Remaining() }

// Valid compares the clock on the spot. What was read before it said true was
// not changed while it was read; ask after the last read.
func (r *ReadClaim) Valid() bool { return r.own.Valid() }

// Renew renews the share of a lock with lock.Options.NoRenewal; see
// [lock.Claim.Renew].
func (r *ReadClaim) Renew(ctx context.Context) error { return r.own.Renew(ctx) }

// Release gives the share up; see [lock.Claim.Release].
func (r *ReadClaim) Release(ctx context.Context) error { return r.own.Release(ctx) }

// Read waits until name may be read, runs fn, and gives the share up when fn has
// returned or panicked, even if ctx has ended.
//
// The context that fn gets ends with ctx, or when the claim ends. If that
// happened before fn returned, Read's error says so, beside fn's own: what fn
// read may be of before and after a write. If fn was not run, the error is
// interlock.ErrHeld (Options.Lock.Wait has passed), that of ctx, ErrReentered
// (ctx reads or writes name already: a writer who waits in between would wait
// for ever), or that of the backend.
func (l *Lock) Read(ctx context.Context, name string, fn func(ctx context.Context, r *ReadClaim) error) (err error) {
	r, err := l.AcquireRead(ctx, name)
	if err != nil {
		return err
	}
	working, stop := join.Context(l.holding(ctx, name, r.own), r.Context())
	defer func() {
		stop()
		err = l.finish(ctx, r.name, r.own, err)
	}()
	return fn(working, r)
}

// AcquireRead waits until name may be read, or ctx ends. The claim does not end
// with ctx; it must be released. Errors are those of [Lock.Read].
func (l *Lock) AcquireRead(ctx context.Context, name string) (*ReadClaim, error) {
	return l.read(ctx, name, l.locks.Acquire)
}

// TryRead takes a share if nobody writes, and returns an [*interlock.HeldError]
// otherwise. It blocks only for the backend's answers. It may also be refused
// because another reader stands in the door at that moment.
func (l *Lock) TryRead(ctx context.Context, name string) (*ReadClaim, error) {
	return l.read(ctx, name, l.locks.TryAcquire)
}

type take func(ctx context.Context, name string) (*lock.Claim, error)

func (l *Lock) read(ctx context.Context, name string, door take) (*ReadClaim, error) {
	n, bounded, cancel, err := l.enter(ctx, name)
	if err != nil {
		return nil, err
	}
	defer cancel()
	own, err := again(bounded, func() (*lock.Claim, error) { return l.share(bounded, name, n, door) })
	if err != nil {
		return nil, l.fail(ctx, name, err)
	}
	return &ReadClaim{name, own, l.holding(own.Context(), name, own)}, nil
}

// share takes a lock for one reader, in the door. With an error it is given back.
func (l *Lock) share(ctx context.Context, name string, n names, take take) (*lock.Claim, error) {
	door, err := take(ctx, n.door)
	if err != nil {
		return nil, err
	}
	defer func() { _ = door.Release(ctx) }() // Hooks.ReleaseFailed tells
	own, err := l.locks.Acquire(ctx, n.reader())
	if err != nil {
		return nil, err
	}
	reads := false
	defer func() { // also if Seal panics
		if !reads {
			_ = own.Release(ctx)
		}
	}()
	if l.seal != nil {
		err = l.sealed(ctx, name, door)
	}
	// The order counts: a writer who comes after the door's claim has ended looks
	// for readers, and must find a lock that was granted before it ended.
	if !door.Valid() {
		err = errTurnOver
	}
	reads = err == nil
	return own, err
}

// sealed keeps out the writers from before.
func (l *Lock) sealed(ctx context.Context, name string, door *lock.Claim) error {
	ctx, stop := join.Context(ctx, door.Context())
	defer stop()
	return l.seal(ctx, name, door)
}

// finish gives a claim up after the work, and adds to err if it ended early.
func (l *Lock) finish(ctx context.Context, name string, c *lock.Claim, err error) error {
	_ = c.Release(ctx) // Hooks.ReleaseFailed tells
	cause := context.Cause(c.Context())
	if cause == interlock.ErrReleased {
		return err
	}
	return errors.Join(err, &interlock.Error{Op: "hold until the work was done", Driver: l.driver, Name: name,
		Kind: interlock.Uncertain, Err: cause})
}
