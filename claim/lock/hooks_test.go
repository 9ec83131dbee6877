package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// blockedHooks block until open is called, at the latest at the end of the test. They note the
// events that they have received.
type blockedHooks struct {
	open  func()
	mu    sync.Mutex
	noted []string
}

// blocked is process with hooks that block.
func (b *bench) blocked(o lock.Options) (*lock.Fenced, *faulty, *blockedHooks) {
	h, closed := &blockedHooks{}, make(chan struct{})
	h.open = sync.OnceFunc(func() { close(closed) })
	note := func(event, name string) {
		<-closed
		h.mu.Lock()
		defer h.mu.Unlock()
		h.noted = append(h.noted, name+": "+event)
	}
	o.Hooks = &observe.Lock{
		Waiting:       func(e observe.LockWaiting) { note("waiting", e.Name) },
		Renewed:       func(e observe.LockRenewed) { note("renewed", e.Name) },
		HeldLong:      func(e observe.LockHeldLong) { note("held long", e.Name) },
		Ended:         func(e observe.LockEnded) { note("ended", e.Name) },
		RequestFailed: func(e observe.LockRequestFailed) { note("request failed", e.Name) },
		ReleaseFailed: func(e observe.LockReleaseFailed) { note("release failed", e.Name) },
		Restarting:    func(e observe.LockRestarting) { note("restarting", e.Name) },
	}
	l, d := b.process(&o)
	b.Cleanup(h.open)
	return l, d, h
}

// of returns the noted events on a name.
func (h *blockedHooks) of(name string) (events []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.noted {
		if event, ok := strings.CutPrefix(e, name+": "); ok {
			events = append(events, event)
		}
	}
	return events
}

// TestABlockedHookKeepsNoClaimAlive: claims end on time, whatever ends them.
func TestABlockedHookKeepsNoClaimAlive(t *testing.T) {
	inBubble(t, func(b *bench) {
		const most = 2 * ttl
		l, d, _ := b.blocked(lock.Options{MaxHold: most})
		first := b.acquireNamed(l, "first")
		b.space.Revoke("first")
		<-first.Context().Done() // and its hook blocks
		began := time.Now()
		long, other, lost := b.acquireNamed(l, "long"), b.acquireNamed(l, "other"), b.acquireNamed(l, "lost")
		b.space.Revoke("lost")
		<-lost.Context().Done()
		if took := time.Since(began); took > ttl/2 || context.Cause(lost.Context()) != interlock.ErrLost {
			b.Errorf("a lost claim ended after %v: %v", took, context.Cause(lost.Context()))
		}
		<-long.Context().Done()
		if took := time.Since(began); took != most || !errors.Is(context.Cause(long.Context()), interlock.ErrExpired) {
			b.Errorf("a claim with MaxHold %v ended after %v: %v", most, took, context.Cause(long.Context()))
		}
		if other.Valid() || !errors.Is(context.Cause(other.Context()), interlock.ErrExpired) {
			b.Errorf("of two claims with one end, one has the cause %v", context.Cause(other.Context()))
		}
		last := b.acquireNamed(l, "last")
		_ = d.Driver.Close(b.Context())
		began, left := time.Now(), last.Remaining()
		<-last.Context().Done()
		if took := time.Since(began); took != left || context.Cause(last.Context()) != interlock.ErrExpired {
			b.Errorf("a claim that expires in %v ended after %v: %v", left, took, context.Cause(last.Context()))
		}
	})
}

// TestABlockedHookDelaysNoOtherCaller: requests are repeated, leases are renewed, and the lock is
// passed on, inside the process and to others.
func TestABlockedHookDelaysNoOtherCaller(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d, _ := b.blocked(lock.Options{Turn: -1})
		there, _ := b.process(nil)
		d.set(func() { d.refuse = errRefused })
		time.AfterFunc(time.Second, func() { d.set(func() { d.refuse = nil }) })
		c := b.acquire(l)
		time.Sleep(2 * ttl)
		if !c.Valid() {
			b.Fatal("it was not renewed")
		}
		here := b.queue(l)
		b.release(c)
		c = <-here
		next := b.queue(there)
		again := b.queue(l)
		b.release(c)
		b.release(<-again)
		b.release(<-next)
	})
}

// TestABlockedHookDelaysNoRelease: of several names, the hook of the first one blocks.
func TestABlockedHookDelaysNoRelease(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _, h := b.blocked(lock.Options{})
		other, _ := b.process(nil)
		claims := b.mustAcquireAll(l, abc...)
		released := make(chan error, 1)
		go func() { released <- claims.Release(b.Context()) }()
		b.releaseAll(b.mustAcquireAll(other, abc...))
		h.open()
		testbed.OK(b, <-released)
	})
}

// TestReportsKeepTheirOrder, however long they wait. Close waits for them as long as its context lasts.
func TestReportsKeepTheirOrder(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _, h := b.blocked(lock.Options{MaxHold: ttl})
		c := b.acquire(l)
		time.Sleep(ttl * 7 / 8)
		b.release(c)
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("Close returned %v while a hook blocks", err)
		}
		h.open()
		testbed.OK(b, l.Close(b.Context()))
		if got := h.of(name); !slices.Equal(got, []string{"renewed", "renewed", "held long", "ended"}) {
			b.Errorf("reported %q", got)
		}
	})
}

// What an uncontended pair costs on the memory driver, its own part included.
func TestAllocations(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	locks, err := lock.NewFenced(d, nil)
	testbed.OK(t, err)
	ctx := t.Context()
	pair := func() {
		if c, err := locks.Acquire(ctx, name); err != nil || c.Release(ctx) != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(200, pair); n > 12 {
		t.Errorf("%v allocations for an acquire and a release, at most 12 are allowed", n)
	}
}
