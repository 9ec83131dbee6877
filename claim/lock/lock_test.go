package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

func TestDoHoldsWithRisingTokens(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		var last interlock.Token
		for range 3 {
			err := l.Do(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
				time.Sleep(3 * ttl) // renewed meanwhile
				if c.Token() <= last || !c.Valid() || ctx.Err() != nil || c.Name() != name {
					b.Errorf("token %d after %d, valid %v, ctx %v, name %q", c.Token(), last, c.Valid(), ctx.Err(), c.Name())
				}
				last = c.Token()
				return nil
			})
			testbed.OK(b, err)
		}
		b.mustBeEmpty()
	})
}

func TestDoReturnsTheWorksErrorAndReleasesOnPanic(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		boom := errors.New("boom")
		err := l.Do(b.Context(), name, func(context.Context, interlock.Claim) error { return boom })
		if err != boom {
			b.Fatalf("got %v", err)
		}
		func() {
			defer func() {
				if recover() != "panic in the work" {
					b.Error("the panic did not come through")
				}
			}()
			_ = l.Do(b.Context(), name, func(context.Context, interlock.Claim) error { panic("panic in the work") })
		}()
		b.mustBeEmpty()
	})
}

func TestDoEndsTheWorksContextWithTheCallers(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		cause := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(b.Context())
		err := l.Do(ctx, name, func(ctx context.Context, c interlock.Claim) error {
			cancel(cause)
			<-ctx.Done()
			if b.residue() != 1 || !c.Valid() {
				b.Error("the lock was given up before the work returned")
			}
			return context.Cause(ctx)
		})
		if err != cause || b.residue() != 0 {
			b.Fatalf("got %v, %d left", err, b.residue())
		}
	})
}

func TestAcquiredClaimOutlivesItsContext(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		ctx, cancel := context.WithCancel(context.WithValue(b.Context(), contextKey{}, "kept"))
		c, err := l.Acquire(ctx, name)
		testbed.OK(b, err)
		cancel()
		time.Sleep(2 * ttl)
		if c.Context().Err() != nil || !c.Valid() || c.Context().Value(contextKey{}) != "kept" {
			b.Fatal("the claim ended with the context that waited for it, or lost its values")
		}
		testbed.OK(b, c.Release(ctx)) // cancelled, and must not matter
		if context.Cause(c.Context()) != interlock.ErrReleased || c.Valid() || c.Remaining() > 0 || b.residue() != 0 {
			b.Fatalf("after release: cause %v, valid %v, %d left", context.Cause(c.Context()), c.Valid(), b.residue())
		}
		if err := c.Release(ctx); err != nil {
			b.Fatalf("again: %v", err)
		}
	})
}

type contextKey struct{}

func TestGoroutinesAreServedInOrderWithOnePlace(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		first := b.acquire(l)
		var order []int
		var tokens []interlock.Token
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				c := b.acquire(l)
				order, tokens = append(order, i), append(tokens, c.Token())
				b.release(c)
			})
			synctest.Wait() // i is in the queue
		}
		if b.residue() != 1 {
			b.Fatalf("%d places in the backend for one process", b.residue())
		}
		b.release(first)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 10 {
			b.Fatalf("order %v", order)
		}
		for i, token := range tokens {
			if token.Counter() != first.Token().Counter() || token.Sub() != i+1 {
				b.Fatalf("hand-over %d has token %d.%d", i+1, token.Counter(), token.Sub())
			}
		}
		if d.acquires != 1 || b.residue() != 0 {
			b.Fatalf("%d requests, %d left", d.acquires, b.residue())
		}
	})
}

// Four processes with 16 goroutines each want a name for a millisecond at a time, again and
// again. A process has its turn after those of the others, which are short, and most
// grants are still passed on.
func TestTurnsAreBoundedInTime(t *testing.T) {
	inBubble(t, func(b *bench) {
		const processes, goroutines, hold, window = 4, 16, time.Millisecond, 2 * time.Second
		var mu sync.Mutex
		var waits []time.Duration
		var drivers []*faulty
		var wg sync.WaitGroup
		for range processes {
			l, d := b.process(nil)
			for range goroutines {
				wg.Go(func() {
					for end := time.Now().Add(window); time.Now().Before(end); {
						began := time.Now()
						c := b.acquire(l)
						mu.Lock()
						waits = append(waits, time.Since(began))
						mu.Unlock()
						time.Sleep(hold)
						b.release(c)
					}
				})
			}
			drivers = append(drivers, d)
		}
		wg.Wait()
		slices.Sort(waits)
		if p99 := waits[len(waits)*99/100]; p99 > 90*time.Millisecond {
			b.Errorf("p99 of the waits is %v", p99)
		}
		requests := 0
		for _, d := range drivers {
			requests += d.acquires
		}
		if len(waits) < int(window/hold) || requests > len(waits)/15 {
			b.Errorf("%d claims by %d requests in %v", len(waits), requests, window)
		}
	})
}

func TestCancelledWaitersLeaveNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(nil)
		l, _ := b.process(nil)
		c := b.acquire(holder)
		cause := errors.New("changed its mind")
		var leave []func()
		for range 2 { // the second one waits in an attempt that the first one began
			ctx, cancel := context.WithCancelCause(b.Context())
			done := make(chan error)
			go func() {
				_, err := l.Acquire(ctx, name)
				done <- err
			}()
			synctest.Wait()
			leave = append(leave, func() {
				cancel(cause)
				if err := <-done; !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
					b.Fatalf("got %v (%v)", err, interlock.Kind(err))
				}
				synctest.Wait()
			})
		}
		for i, want := range []int{2, 1} {
			if leave[i](); b.residue() != want {
				b.Fatalf("%d contenders, want %d", b.residue(), want)
			}
		}
		b.release(c)
	})
}

func TestOneCancelledWaiterDoesNotCostTheOthersTheirPlace(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(nil)
		l, d := b.process(nil)
		later, _ := b.process(nil)
		c := b.acquire(holder)
		ctx, cancel := context.WithCancel(b.Context())
		first := make(chan error)
		go func() {
			_, err := l.Acquire(ctx, name)
			first <- err
		}()
		synctest.Wait()
		second := b.queue(l)
		third := b.queue(later)
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			b.Fatal(err)
		}
		b.release(c)
		c = <-second
		if len(slices.Compact(d.owners)) != 1 || d.acquires > 2 || len(third) > 0 {
			b.Fatalf("%d requests of %d owners: the place was given up with the goroutine that asked for it", d.acquires, len(d.owners))
		}
		b.release(c)
		b.release(<-third)
	})
}

func TestExpiryEndsTheClaimBeforeAnotherHasIt(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		other, _ := b.process(nil)
		c := b.acquire(l)
		_ = d.Driver.Close(b.Context()) // nothing is renewed from here on
		next := make(chan *lock.Claim, 1)
		go func() { next <- b.acquire(other) }()
		select {
		case <-c.Context().Done():
		case <-next:
			b.Fatal("another has the lock already")
		}
		if cause := context.Cause(c.Context()); cause != interlock.ErrExpired || c.Valid() || c.Remaining() > 0 {
			b.Fatalf("cause %v, valid %v", cause, c.Valid())
		}
		n := <-next
		if n.Token() <= c.Token() {
			b.Fatal("tokens fell")
		}
		testbed.OK(b, c.Release(b.Context())) // lost already: at once, and no error
		b.release(n)
	})
}

// After a stop, user code may run before the timer.
func TestTheClockOnTheSpotDecides(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		c := b.acquire(l)
		d.set(func() { d.stopped = true })
		if c.Valid() || c.Remaining() > 0 {
			b.Fatal("valid although its time is over")
		}
		_ = c.Release(b.Context())
		if cause := context.Cause(c.Context()); cause != interlock.ErrExpired {
			b.Fatalf("cause %v: it had expired before it was released", cause)
		}
	})
}

func TestLossIsTold(t *testing.T) {
	inBubble(t, func(b *bench) {
		var ended []observe.LockEnded
		l, _ := b.process(&lock.Options{Hooks: &observe.Lock{Ended: func(e observe.LockEnded) { ended = append(ended, e) }}})
		err := l.Do(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
			b.space.Revoke(name)
			<-ctx.Done()
			if context.Cause(ctx) != interlock.ErrLost || c.Valid() {
				b.Errorf("cause %v, valid %v", context.Cause(ctx), c.Valid())
			}
			return nil
		})
		if !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Uncertain {
			b.Fatalf("Do of a lost claim: %v (%v)", err, interlock.Kind(err))
		}
		synctest.Wait()
		if len(ended) != 1 || ended[0].Cause != interlock.ErrLost || ended[0].Held <= 0 {
			b.Fatalf("events %+v", ended)
		}
	})
}

func TestLostRepliesConverge(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		d.loseAcquires, d.loseReleases = 2, 2
		c := b.acquire(l)
		if d.acquires != 3 || b.residue() != 1 || len(slices.Compact(slices.Clone(d.owners))) != 1 {
			b.Fatalf("%d requests as %q, %d places", d.acquires, d.owners, b.residue())
		}
		b.release(c)
		if b.residue() != 0 || d.loseReleases != 0 {
			b.Fatal("not given up")
		}
	})
}

func TestUnreachableBackend(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{Attempts: 4})
		d.refuse = errReplyLost
		began := time.Now()
		_, err := l.Acquire(b.Context(), name)
		if !errors.Is(err, interlock.ErrUncertain) || d.acquires != 4 {
			b.Fatalf("after %d attempts: %v", d.acquires, err)
		}
		if took := time.Since(began); took < 30*time.Millisecond || took > 10*time.Second {
			b.Fatalf("it took %v", took)
		}
		d.set(func() {
			d.refuse = &interlock.Error{Op: "test", Kind: interlock.Definite, Err: errors.New("no such user")}
		})
		before := d.acquires
		if _, err := l.Acquire(b.Context(), name); interlock.Kind(err) != interlock.Definite || d.acquires != before+1 {
			b.Fatalf("a definite error was repeated: %v", err)
		}
		d.set(func() { d.refuse = nil })
		b.release(b.acquire(l))
	})
}

func TestReleaseThatCannotBeConfirmed(t *testing.T) {
	inBubble(t, func(b *bench) {
		var failed []observe.LockReleaseFailed
		l, d := b.process(&lock.Options{ReleaseTimeout: 3 * time.Second,
			Hooks: &observe.Lock{ReleaseFailed: func(e observe.LockReleaseFailed) { failed = append(failed, e) }}})
		d.loseReleases = 1 << 30
		if err := l.Do(b.Context(), name, func(context.Context, interlock.Claim) error { return nil }); err != nil {
			b.Fatalf("the work was done, and Do says %v", err)
		}
		if len(failed) != 1 || failed[0].Name != name {
			b.Fatalf("events %+v", failed)
		}
		c := b.acquire(l)
		began := time.Now()
		if err := c.Release(b.Context()); !errors.Is(err, interlock.ErrUncertain) {
			b.Fatal(err)
		}
		if took := time.Since(began); took > 4*time.Second {
			b.Fatalf("it took %v with a bound of 3 s", took)
		}
	})
}

// TestARefusalIsReportedOnce requires that a backend which refuses a name, as Redis does with WRONGTYPE, and
// then also to release it, is reported to the caller alone.
func TestARefusalIsReportedOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		var failed []observe.LockReleaseFailed
		l, d := b.process(&lock.Options{Hooks: &observe.Lock{ReleaseFailed: func(e observe.LockReleaseFailed) { failed = append(failed, e) }}})
		wrongType := &interlock.Error{Op: "test", Kind: interlock.Definite, Err: errors.New("WRONGTYPE")}
		d.refuse, d.refuseRelease = wrongType, wrongType
		if _, err := l.Acquire(b.Context(), name); !errors.Is(err, wrongType) {
			b.Fatal(err)
		}
		if synctest.Wait(); d.releases != 1 || len(failed) != 0 {
			b.Fatalf("%d releases, events %+v", d.releases, failed)
		}
		d.set(func() { d.refuse = nil })
		if err := b.acquire(l).Release(b.Context()); !errors.Is(err, wrongType) || len(failed) != 1 {
			b.Fatalf("release of a claim: %v, events %+v", err, failed)
		}
	})
}

// TestARefusedPlaceIsNotReleasedForLong: a place that the backend refused to create left nothing, so a
// release that it refuses, too, is not repeated. A waiter had a place, so its release is repeated.
func TestARefusedPlaceIsNotReleasedForLong(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{Wait: time.Second})
		d.refuse, d.refuseRelease = errRefused, errRefused
		if _, err := l.Acquire(b.Context(), name); !errors.Is(err, errRefused) {
			b.Fatal(err)
		}
		began := time.Now()
		testbed.OK(b, l.Close(b.Context()))
		if took := time.Since(began); took > 0 || d.releases != 1 {
			b.Errorf("Close took %v, with %d releases", took, d.releases)
		}
		d.set(func() { d.refuse, d.refuseRelease = nil, nil })

		first, _ := b.process(nil)
		c := b.acquire(first)
		l, d = b.process(nil)
		ctx, cancel := context.WithCancel(b.Context())
		left := make(chan error)
		go func() {
			_, err := l.Acquire(ctx, name)
			left <- err
		}()
		synctest.Wait()
		d.set(func() { d.endWith, d.refuseRelease = errRefused, errRefused })
		cancel()
		<-left
		time.Sleep(time.Second)
		d.set(func() { d.refuseRelease = nil })
		if synctest.Wait(); d.releases < 2 {
			b.Errorf("the place of a waiter was released %d times", d.releases)
		}
		b.release(c)
	})
}

func TestReleaseEndsWithTheLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{ReleaseTimeout: time.Hour})
		c := b.acquire(l)
		d.set(func() { d.loseReleases = 1 << 30 })
		began, left := time.Now(), c.Remaining()
		if err := c.Release(b.Context()); !errors.Is(err, interlock.ErrUncertain) {
			b.Fatal(err)
		}
		if took := time.Since(began); took > left {
			b.Fatalf("it took %v to give up a lease of which %v were left", took, left)
		}
	})
}

func TestReentryIsExplicit(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		err := l.Do(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
			if err := l.Do(ctx, name, nil); !errors.Is(err, interlock.ErrReentered) || interlock.Kind(err) != interlock.Bug {
				b.Errorf("re-entry: %v", err)
			}
			held, ok := l.Held(ctx, name)
			if !ok || held.Token() != c.Token() {
				b.Error("the claim is not found in its own context")
			}
			if _, ok := l.Held(ctx, "another"); ok {
				b.Error("another name is found")
			}
			return l.Do(ctx, "another", func(ctx context.Context, _ interlock.Claim) error {
				if _, ok := l.Held(ctx, name); !ok {
					b.Error("the outer claim is not found below the inner one")
				}
				return nil
			})
		})
		testbed.OK(b, err)
		c := b.acquire(l)
		ctx := c.Context()
		b.release(c)
		if _, ok := l.Held(ctx, name); ok {
			b.Fatal("a released claim is found")
		}
	})
}

func TestTryAcquire(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{Identity: "worker-1"})
		other, _ := b.process(nil)
		c, err := l.TryAcquire(b.Context(), name)
		testbed.OK(b, err)
		for who, l := range map[string]*lock.Fenced{"the same process": l, "another": other} {
			var held *interlock.HeldError
			if _, err := l.TryAcquire(b.Context(), name); !errors.As(err, &held) || !strings.HasPrefix(held.Owner, "worker-1/") {
				b.Fatalf("%s: %v", who, err)
			}
		}
		if b.residue() != 1 {
			b.Fatalf("%d places", b.residue())
		}
		b.release(c)
		c, err = other.TryAcquire(b.Context(), name)
		testbed.OK(b, err)
		b.release(c)
	})
}

// A try that comes during a release of ours, and one who waits right after it.
func TestTryBehindAReleaseDoesNotWait(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		other, _ := b.process(nil)
		first := b.acquire(l)
		d.loseReleases = 1 // makes the release last
		released, tried, waited := make(chan error), make(chan error), make(chan *lock.Claim)
		theirs := b.queue(other)
		go func() { released <- first.Release(b.Context()) }()
		synctest.Wait()
		began := time.Now()
		go func() {
			_, err := l.TryAcquire(b.Context(), name)
			tried <- err
		}()
		synctest.Wait()
		go func() { waited <- b.acquire(l) }()
		synctest.Wait()
		if _, err := l.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) || time.Since(began) > 0 {
			b.Fatalf("behind others, after %v: %v", time.Since(began), err)
		}
		holder := <-theirs
		if err := <-tried; !errors.Is(err, interlock.ErrHeld) || time.Since(began) > ttl {
			b.Fatalf("after %v: %v", time.Since(began), err)
		}
		testbed.OK(b, <-released)
		b.release(holder)
		b.release(<-waited)
	})
}

func TestWaitIsBounded(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(&lock.Options{Identity: "the-holder"})
		c := b.acquire(holder)
		l, _ := b.process(&lock.Options{Wait: time.Minute})
		began := time.Now()
		_, err := l.Acquire(b.Context(), name)
		if held, found := errors.AsType[*interlock.HeldError](err); !found || !strings.HasPrefix(held.Owner, "the-holder/") || time.Since(began) != time.Minute {
			b.Fatalf("after %v: %v", time.Since(began), err)
		}
		b.release(c)
		synctest.Wait()
		b.mustBeEmpty()
		// It bounds the wait, not the hold.
		c = b.acquire(l)
		time.Sleep(2 * time.Minute)
		if !c.Valid() {
			b.Fatal("the claim ended with the bound of the wait")
		}
		b.release(c)
	})
}

// TestAPastFailureIsNotTheReasonOfAWait: a failed request before the grant does not hide that the
// lock is held.
func TestAPastFailureIsNotTheReasonOfAWait(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{Wait: time.Second, Hooks: &observe.Lock{Log: observe.Silent}})
		d.loseAcquires = 1
		c := b.acquire(l)
		_, err := l.Acquire(b.Context(), name)
		if held := (*interlock.HeldError)(nil); !errors.As(err, &held) || held.Owner != c.Owner() {
			b.Errorf("the wait for a held lock ended with: %v", err)
		}
		b.release(c)
	})
}

func TestClose(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(nil)
		c := b.acquire(holder)
		l, _ := b.process(nil)
		done := make(chan error)
		go func() {
			_, err := l.Acquire(b.Context(), name)
			done <- err
		}()
		synctest.Wait()
		testbed.OK(b, l.Close(b.Context()))
		if err := <-done; !errors.Is(err, interlock.ErrClosed) {
			b.Fatalf("a waiter got %v", err)
		}
		if _, err := l.TryAcquire(b.Context(), "x"); !errors.Is(err, interlock.ErrClosed) {
			b.Fatalf("after Close: %v", err)
		}
		if b.residue() != 1 {
			b.Fatal("Close returned before the place was given up")
		}
		if err := holder.Close(b.Context()); err != nil || !c.Valid() {
			b.Fatalf("Close took a claim away: %v, valid %v", err, c.Valid())
		}
		b.release(c)
	})
}

func TestHooks(t *testing.T) {
	inBubble(t, func(b *bench) {
		var mu sync.Mutex
		var seen []string
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf(format, args...))
		}
		l, _ := b.process(&lock.Options{Turn: -1, Hooks: &observe.Lock{
			Waiting:    func(e observe.LockWaiting) { note("waiting behind %d", e.Ahead) },
			Acquired:   func(e observe.LockAcquired) { note("acquired .%d after %v", e.Token.Sub(), e.Wait) },
			HandedOver: func(e observe.LockHandedOver) { note("handed over .%d", e.Token.Sub()) },
			Renewed:    func(e observe.LockRenewed) { note("renewed: %v", e.Err) },
			Ended:      func(e observe.LockEnded) { note("ended after %v: %v", e.Held, e.Cause) },
		}})
		other, _ := b.process(nil)
		c := b.acquire(other)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				c := b.acquire(l)
				time.Sleep(ttl / 2)
				b.release(c)
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		b.release(c)
		wg.Wait()
		synctest.Wait()
		got := strings.Join(seen, "\n")
		for _, want := range []string{"waiting behind 0", "acquired .0 after 1s", "handed over .1", "renewed: <nil>", "ended after 3s: claim released"} {
			if !strings.Contains(got, want) {
				b.Errorf("no %q in:\n%s", want, got)
			}
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	for _, o := range []lock.Options{
		{Identity: strings.Repeat("x", 201)},
		{Wait: -1}, {MinValidity: -1}, {ReleaseTimeout: -1}, {Attempts: -1},
		{Handovers: interlock.MaxSub + 1},
	} {
		if _, err := lock.NewFenced(d, &o); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	var unmet *interlock.UnmetError
	if _, err := lock.NewFenced(d, &lock.Options{Require: interlock.Requirements{CrossProcess: true}}); !errors.As(err, &unmet) {
		t.Errorf("an unmet requirement: %v", err)
	}
}

func TestNamesAreBounded(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		for _, bad := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
			if _, err := l.Acquire(b.Context(), bad); !errors.Is(err, interlock.ErrName) {
				b.Errorf("a name of %d bytes: %v", len(bad), err)
			}
		}
	})
}

func TestAdvisory(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := b.space.OpenPlain(nil)
		defer d.Close(b.Context())
		l, err := lock.NewAdvisory(d, nil)
		testbed.OK(b, err)
		fenced, _ := b.process(nil)
		err = l.Do(b.Context(), name, func(_ context.Context, c *lock.AdvisoryClaim) error {
			if _, err := fenced.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
				b.Errorf("not excluded: %v", err)
			}
			if !c.Valid() || c.Name() != name || c.Owner() == "" {
				b.Error("not a claim")
			}
			return nil
		})
		if err != nil || b.residue() != 0 {
			b.Fatal(err)
		}
		first, err := l.TryAcquire(b.Context(), name)
		testbed.OK(b, err)
		done := make(chan *lock.AdvisoryClaim)
		go func() {
			c, _ := l.Acquire(b.Context(), name)
			done <- c
		}()
		synctest.Wait()
		testbed.OK(b, first.Release(b.Context()))
		if c := <-done; c.Owner() != first.Owner() || c.Release(b.Context()) != nil {
			b.Error("not passed on inside the process")
		}
		testbed.OK(b, l.Close(b.Context()))
	})
}

// The driver may tell of the loss before the grant has reached anybody.
func TestLossBeforeDelivery(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		once := sync.OnceFunc(func() {
			b.space.Revoke(name)
			time.Sleep(ttl / 2) // a renewal finds out, the lease would still last
		})
		d.afterAcquired = once
		c := b.acquire(l)
		if d.acquires != 2 || !c.Valid() {
			b.Fatalf("%d requests, valid %v: a grant that was lost already was delivered", d.acquires, c.Valid())
		}
		b.release(c)
	})
}

// A try whose first answer was lost may have left something behind.
func TestUncertainTryIsGivenUp(t *testing.T) {
	inBubble(t, func(b *bench) {
		other, _ := b.process(nil)
		l, d := b.process(nil)
		var theirs *lock.Claim
		d.loseAcquires = 1
		d.afterAcquired = sync.OnceFunc(func() {
			b.space.Revoke(name) // somebody else has it before the try is repeated
			theirs = b.acquire(other)
		})
		if _, err := l.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
			b.Fatal(err)
		}
		synctest.Wait()
		if d.releases != 1 {
			b.Fatalf("%d releases after an uncertain try", d.releases)
		}
		b.release(theirs)
	})
}

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

// TestAReentrantCallThatOutlivesTheClaim returns that its work was not done under the lock.
func TestAReentrantCallThatOutlivesTheClaim(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{Reentrant: true})
		ended := make(chan error, 1)
		testbed.OK(b, l.Do(b.Context(), name, func(ctx context.Context, _ interlock.Claim) error {
			go func() {
				ended <- l.Do(ctx, name, func(ctx context.Context, _ interlock.Claim) error {
					<-ctx.Done()
					return nil
				})
			}()
			synctest.Wait()
			return nil
		}))
		if err := <-ended; !errors.Is(err, interlock.ErrReleased) || interlock.Kind(err) != interlock.Uncertain {
			b.Errorf("the inner call ended with %v", err)
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
