package lock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
)

// TestReentrantCallsShareTheClaim of the context: same token, and only the first
// holder gives it up. Another context has to wait.
func TestReentrantCallsShareTheClaim(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{Reentrant: true})
		err := l.Do(b.Context(), name, func(ctx context.Context, outer interlock.Claim) error {
			err := l.Do(ctx, name, func(ctx context.Context, inner interlock.Claim) error {
				c, err := l.Acquire(ctx, name)
				if err != nil || inner.Token() != outer.Token() || c.Token() != outer.Token() || c.Owner() != outer.Owner() {
					b.Errorf("claims %v, %v, %v: %v", outer.Token(), inner.Token(), c.Token(), err)
				}
				return c.Release(ctx)
			})
			if err != nil || !outer.Valid() || ctx.Err() != nil || b.residue() != 1 {
				b.Errorf("the inner call gave it up: %v", err)
			}
			if c, err := l.TryAcquire(ctx, name); err != nil || c.Release(ctx) != nil || !outer.Valid() {
				b.Errorf("a try: %v", err)
			}
			if _, err := l.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
				b.Errorf("in another context: %v", err)
			}
			if _, err := l.AcquireAll(ctx, []string{name, "x"}); !errors.Is(err, interlock.ErrReentered) {
				b.Errorf("several names: %v", err)
			}
			return nil
		})
		if err != nil || d.acquires != 1 || b.residue() != 0 {
			b.Errorf("%v, %d requests", err, d.acquires)
		}
	})
}

// TestAReentrantCallAfterALossAsksAgain: a claim that has ended is not shared, and
// work that it ended under gets that error.
func TestAReentrantCallAfterALossAsksAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{Reentrant: true})
		err := l.Do(b.Context(), name, func(ctx context.Context, outer interlock.Claim) error {
			err := l.Do(ctx, name, func(ctx context.Context, _ interlock.Claim) error {
				b.space.Revoke(name)
				<-ctx.Done()
				return nil
			})
			if !errors.Is(err, interlock.ErrLost) {
				b.Errorf("the inner call ended with %v", err)
			}
			c, err := l.Acquire(context.WithoutCancel(ctx), name)
			if err != nil || c.Token() <= outer.Token() {
				b.Errorf("acquired again: %v", err)
				return nil
			}
			return c.Release(ctx)
		})
		if !errors.Is(err, interlock.ErrLost) {
			b.Errorf("the outer call ended with %v", err)
		}
	})
}
