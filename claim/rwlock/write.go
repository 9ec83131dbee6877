package rwlock

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

// WriteClaim is an exclusive (write) lock of a name, with a token that orders its writers. It
// is an [interlock.Claim] and safe for concurrent use.
type WriteClaim struct {
	*lock.Claim
	lock  *Lock
	names names
	name  string
	ctx   context.Context
}

var _ interlock.Claim = (*WriteClaim)(nil)

// Downgrade replaces the write claim by a read claim. No other process writes in between, and
// others may read once Downgrade returns. The write claim has ended then. After an error the
// caller holds neither claim. Readers see what was written through a guard under the write
// claim. Downgrade calls Options.Seal with the write claim, and blocks for the backend's replies
// while ctx lasts.
func (w *WriteClaim) Downgrade(ctx context.Context) (*ReadClaim, error) {
	bounded, stop := join.Context(ctx, w.Claim.Context())
	defer stop()
	// A later writer lists the readers once the door is free, and finds this one.
	own, err := w.lock.shareUnder(bounded, w.name, w.names, w.Claim)
	_ = w.Claim.Release(ctx) // Hooks.ReleaseFailed reports errors
	if err != nil {
		return nil, w.lock.fail(ctx, w.name, err)
	}
	return &ReadClaim{w.name, own, w.lock.holding(own.Context(), w.name, own)}, nil
}

// Name returns the name as the caller wrote it.
func (w *WriteClaim) Name() string { return w.name }

// Context returns a context that ends, with its cause, when the claim does.
func (w *WriteClaim) Context() context.Context { return w.ctx }

// Write blocks until it has a write claim of name, runs fn, and releases the claim when fn has
// returned or panicked, as [lock.Fenced.Do] does. Its errors are those of [Lock.Read].
func (l *Lock) Write(ctx context.Context, name string, fn func(ctx context.Context, c interlock.Claim) error) error {
	w, err := l.AcquireWrite(ctx, name)
	if err != nil {
		return err
	}
	return l.work(ctx, name, w.Claim, func(ctx context.Context) error { return fn(ctx, w) })
}

// AcquireWrite blocks until it has a write claim of name, or ctx ends. The claim does not end
// with ctx; the caller must release it. Its errors are those of [Lock.Read].
func (l *Lock) AcquireWrite(ctx context.Context, name string) (*WriteClaim, error) {
	return l.write(ctx, name, l.locks.Acquire, l.awaitReaders)
}

// TryWrite returns a write claim if there are no readers and no writer, and an
// [*interlock.HeldError] otherwise. It blocks only for the backend's replies.
func (l *Lock) TryWrite(ctx context.Context, name string) (*WriteClaim, error) {
	return l.write(ctx, name, l.locks.TryAcquire, l.refuseReaders)
}

func (l *Lock) write(ctx context.Context, name string, take take, clear clear) (*WriteClaim, error) {
	n, bounded, cancel, err := l.enter(ctx, name)
	if err != nil {
		return nil, err
	}
	defer cancel()
	door, err := again(bounded, func() (*lock.Claim, error) { return alone(bounded, n, take, clear) })
	if err != nil {
		return nil, l.fail(ctx, name, err)
	}
	return &WriteClaim{door, l, n, name, l.holding(door.Context(), name, door)}, nil
}

// clear returns nil when there are no readers, or an error.
type clear func(ctx context.Context, prefix string) error

// alone acquires the door and keeps it once the last reader has left.
func alone(ctx context.Context, n names, take take, clear clear) (*lock.Claim, error) {
	door, err := take(ctx, n.door)
	if err != nil {
		return nil, err
	}
	waiting, stop := join.Context(ctx, door.Context())
	err = clear(waiting, n.prefix)
	stop()
	if !door.Valid() && ctx.Err() == nil {
		err = errTurnOver
	}
	if err != nil {
		_ = door.Release(ctx) // Hooks.ReleaseFailed reports errors
		return nil, err
	}
	return door, nil
}

func (l *Lock) awaitReaders(ctx context.Context, prefix string) error {
	return l.locks.Await(ctx, l.view, prefix, func(ctx context.Context, _ []string) (bool, time.Duration, error) {
		readers, err := l.readers(ctx, prefix)
		return len(readers) == 0, driver.NextExpiry(readers), err
	})
}

func (l *Lock) refuseReaders(ctx context.Context, prefix string) error {
	readers, err := l.readers(ctx, prefix)
	if err != nil || len(readers) == 0 {
		return err
	}
	held := &interlock.HeldError{Name: readers[0].Name}
	if h := readers[0].Holder; h != nil {
		held.Owner, held.Since = h.Owner, h.Since
	}
	return held
}

// readers lists readers: all if they are few, otherwise some. It includes a reader whose lock
// is requested but not granted, because the grant may come at any moment.
func (l *Lock) readers(ctx context.Context, prefix string) ([]driver.LockState, error) {
	const enough = 64 // to see the next one expire
	readers, _, err := l.view.Locks(ctx, prefix, enough)
	return readers, err
}
