package semaphore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSeveralPermitsAtOnce: an acquire gets all permits in one turn at the door, so two large
// requests do not deadlock.
func TestSeveralPermitsAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(5, nil)
		there, _ := b.process(5, nil)
		mine, err := here.AcquireN(b.Context(), name, 3)
		if err != nil || len(mine) != 3 || !mine.Valid() {
			b.Fatalf("%d permits, %v", len(mine), err)
		}
		if _, err := there.TryAcquireN(b.Context(), name, 3); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("three of two: %v", err)
		}
		if left := b.residue(); len(left) != 3 {
			b.Errorf("a try left something: %q", left)
		}
		told := make(chan semaphore.Permits, 2)
		for _, s := range []*semaphore.Semaphore{here, there} {
			go func() {
				p, err := s.AcquireN(b.Context(), name, 4)
				if err != nil {
					b.Error(err)
				}
				told <- p
			}()
		}
		time.Sleep(2 * ttl)
		select {
		case <-told:
			b.Fatal("four of two")
		default:
		}
		b.release(mine...)
		for range 2 {
			p := <-told
			if len(p) != 4 {
				b.Fatalf("%d permits", len(p))
			}
			b.release(p...)
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		held, err := here.AcquireN(b.Context(), name, 2)
		testbed.OK(b, err)
		if _, err := there.AcquireN(ctx, name, 4); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("four of three: %v", err)
		}
		b.release(held...)
		synctest.Wait()
		b.mustBeEmpty()
		for n, want := range map[int]interlock.ErrorKind{0: interlock.Bug, -1: interlock.Bug, semaphore.MaxPermits + 1: interlock.Bug, 6: interlock.Definite} {
			if _, err := here.AcquireN(b.Context(), name, n); err == nil || interlock.Kind(err) != want {
				b.Errorf("%d of five: %v", n, err)
			}
		}
		if _, err := here.AcquireN(b.Context(), name, 6); !errors.Is(err, semaphore.ErrSize) {
			b.Errorf("six of five: %v", err)
		}
	})
}

// TestPermitUnderAPermit: a slot that the caller's own context holds is taken, as all others are.
func TestPermitUnderAPermit(t *testing.T) {
	inBubble(t, func(b *bench) {
		for _, reentrant := range []bool{false, true} {
			s, _ := b.process(2, &semaphore.Options{Lock: &lock.Options{Reentrant: reentrant}})
			for range 20 { // slots are tried from a random one
				p := b.acquire(s)
				q, err := s.Acquire(p.Context(), name)
				testbed.OK(b, err)
				if _, err := s.TryAcquire(q.Context(), name); !errors.Is(err, interlock.ErrHeld) {
					b.Errorf("slots %d and %d, then %v", p.Slot(), q.Slot(), err)
				}
				b.release(p, q)
			}
		}
	})
}

// silent is values that answer no Put.
type silent struct{ driver.Values }

func (silent) Put(ctx context.Context, _ string, _ driver.Value) error {
	select {
	case <-ctx.Done():
	case <-time.After(time.Hour):
	}
	return context.Cause(ctx)
}

func TestResizeEndsWithItsContext(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, _ := b.process(1, &semaphore.Options{Values: silent{}})
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := s.Resize(ctx, name, 2); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("got %v", err)
		}
		b.mustBeEmpty()
	})
}

// TestTheNumberOfPermitsIsKeptInTheBackend: every process sees a change, and waiters see it at
// once.
func TestTheNumberOfPermitsIsKeptInTheBackend(t *testing.T) {
	inBubble(t, func(b *bench) {
		o := &semaphore.Options{Values: b.space.Values()}
		here, _ := b.process(1, o)
		there, _ := b.process(7, o) // resized before its first call
		held := b.acquire(here)
		told := b.waits(here)
		began := time.Now()
		testbed.OK(b, there.Resize(b.Context(), name, 2))
		second := <-told
		if took := time.Since(began); took > 100*time.Millisecond {
			b.Errorf("one who waits saw it after %v", took)
		}
		for _, s := range []*semaphore.Semaphore{here, there} {
			if n, err := s.Size(b.Context(), name); n != 2 || err != nil {
				b.Errorf("%d permits, %v", n, err)
			}
			if _, err := s.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
				b.Errorf("a third of two: %v", err)
			}
		}
		if n, err := here.Size(b.Context(), "another"); n != 1 || err != nil {
			b.Errorf("another name has %d permits, %v", n, err)
		}

		// With fewer permits, held ones stay held, and the excess is not granted again.
		testbed.OK(b, here.Resize(b.Context(), name, 1))
		low, high := held, second
		if low.Slot() > high.Slot() {
			low, high = high, low
		}
		if !low.Valid() || !high.Valid() {
			b.Error("a permit that is held was taken away")
		}
		b.release(low)
		next, err := there.TryAcquire(b.Context(), name)
		if err != nil || next.Slot() != 0 {
			b.Fatalf("the only permit: %v", err)
		}
		b.release(high)
		if _, err := there.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("a second of one: %v", err)
		}
		b.release(next)

		none, _ := b.process(3, nil)
		for n, s := range map[int]*semaphore.Semaphore{2: none, 0: here, semaphore.MaxPermits + 1: here} {
			if err := s.Resize(b.Context(), name, n); interlock.Kind(err) != interlock.Bug {
				b.Errorf("resized to %d: %v", n, err)
			}
		}
		testbed.OK(b, b.space.Values().Put(b.Context(), "bad#s#size", driver.Value{Token: held.Claim().Token(), Data: []byte("many")}))
		if _, err := here.Acquire(b.Context(), "bad"); interlock.Kind(err) != interlock.Definite {
			b.Errorf("a size that is none: %v", err)
		}
	})
}
