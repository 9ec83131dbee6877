package rwlock

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/join"
)

// ReadClaim is a shared (read) lock of a name. It has no token, is not an interlock.Claim, and
// no guard accepts it. It is safe for concurrent use.
type ReadClaim struct {
	name string
	own  *lock.Claim
	ctx  context.Context
}

// Name returns the name as the caller wrote it.
func (r *ReadClaim) Name() string { return r.name }

// Owner returns the holder of this claim as the backend shows it.
func (r *ReadClaim) Owner() string { return r.own.Owner() }

// Context returns a context that ends, with its cause, when the claim does.
func (r *ReadClaim) Context() context.Context { return r.ctx }

// Remaining returns how long the claim is still valid; 0 or less once it has ended.
func (r *ReadClaim) Remaining() time.Duration { return r.own.Remaining() }

// Valid reports whether the claim is valid, by the current clock. Call it after the last read.
// If it returns true, no guarded write has changed what was read.
func (r *ReadClaim) Valid() bool { return r.own.Valid() }

// Renew renews the claim of a lock with lock.Options.NoRenewal; see [lock.Claim.Renew].
func (r *ReadClaim) Renew(ctx context.Context) error { return r.own.Renew(ctx) }

// Release releases the claim; see [lock.Claim.Release].
func (r *ReadClaim) Release(ctx context.Context) error { return r.own.Release(ctx) }

// Read blocks until it has a read claim of name, runs fn, and releases the claim. It releases
// after fn has returned or panicked, even if ctx has ended.
//
// The context of fn ends with ctx or with the claim. If the claim ended before fn returned,
// Read returns that error joined with fn's own: fn may have read data from before and after a
// write. If fn was not run, the error is one of:
//
//   - interlock.ErrHeld, if Options.Lock.Wait has passed
//   - the error of ctx
//   - interlock.ErrReentered, if ctx already holds a claim of name: with a writer queued in
//     between, the call would deadlock
//   - the error of the backend
func (l *Lock) Read(ctx context.Context, name string, fn func(ctx context.Context, r *ReadClaim) error) error {
	r, err := l.AcquireRead(ctx, name)
	if err != nil {
		return err
	}
	return l.work(ctx, name, r.own, func(ctx context.Context) error { return fn(ctx, r) })
}

// AcquireRead blocks until it has a read claim of name, or ctx ends. The claim does not end
// with ctx; the caller must release it. Its errors are those of [Lock.Read].
func (l *Lock) AcquireRead(ctx context.Context, name string) (*ReadClaim, error) {
	return l.read(ctx, name, l.locks.Acquire)
}

// TryRead returns a read claim if there is no writer, and an [*interlock.HeldError] otherwise.
// It blocks only for the backend's replies. It may also fail because another reader holds the
// door at that moment.
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

// share acquires a lock for one reader while it holds the door.
func (l *Lock) share(ctx context.Context, name string, n names, take take) (*lock.Claim, error) {
	door, err := take(ctx, n.door)
	if err != nil {
		return nil, err
	}
	defer func() { _ = door.Release(ctx) }() // Hooks.ReleaseFailed reports errors
	return l.shareUnder(ctx, name, n, door)
}

// shareUnder acquires a lock for one reader under a claim on the door. If it returns an error, it
// has released the lock.
func (l *Lock) shareUnder(ctx context.Context, name string, n names, door *lock.Claim) (*lock.Claim, error) {
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
	// The order matters: a writer that acquires the door after its claim has ended
	// lists the readers, and must find a lock that was granted before.
	if !door.Valid() {
		err = errTurnOver
	}
	reads = err == nil
	return own, err
}

// sealed calls Seal, which rejects earlier writers.
func (l *Lock) sealed(ctx context.Context, name string, door *lock.Claim) error {
	ctx, stop := join.Context(ctx, door.Context())
	defer stop()
	return l.seal(ctx, name, door)
}

// work runs fn under a claim and releases the claim. It adds to the error if the claim ended early.
func (l *Lock) work(ctx context.Context, name string, c *lock.Claim, fn func(ctx context.Context) error) (err error) {
	working, stop := join.Context(l.holding(ctx, name, c), c.Context())
	defer func() {
		stop()
		_ = c.Release(ctx) // Hooks.ReleaseFailed reports errors
		err = l.driver.EndedEarly("hold until the work was done", name, err, context.Cause(c.Context()))
	}()
	return fn(working)
}
