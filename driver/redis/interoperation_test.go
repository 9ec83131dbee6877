package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestForeignHolderExcludesAndIsWaitedFor(t *testing.T) {
	server := testbed.Redis(t)
	foreign, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	set := func(args ...string) {
		t.Helper()
		mustDo(t, foreign, append([]string{"SET", "shared", "theirs", "NX"}, args...)...)
	}
	set() // redis-py without a timeout: no expiry
	_, err := d.Acquire(t.Context(), driver.Request{Name: "shared", Owner: newOwner(), NoWait: true})
	var held *interlock.HeldError
	if !errors.As(err, &held) || held.Owner != "theirs" || !held.Until.IsZero() || !held.Since.IsZero() {
		t.Fatalf("held by a foreign client without an end: %+v", err)
	}
	state, err := d.Lock(t.Context(), "shared")
	if err != nil || state.Holder == nil || !state.Holder.Foreign || state.Holder.Owner != "theirs" || state.Holder.Token != 0 {
		t.Fatalf("it is shown as %+v, %v", state.Holder, err)
	}

	// It deletes its key without a push, so a heartbeat notices.
	waiter, began := await(t, d, "shared"), time.Now()
	mustDo(t, foreign, "DEL", "shared")
	o := receive(t, waiter, bound)
	if took := time.Since(began); took > 2*heartbeat+500*time.Millisecond {
		t.Errorf("a foreign DEL was found after %v", took)
	}
	release(t, d, "shared", o.owner)

	// It crashes: its key expires, and the first waiter gets the lock.
	testbed.Eventually(t, "a grant sooner than by heartbeats alone, which need 1500 ms", bound/6, func() bool { // a busy machine needs several tries
		began := time.Now()
		set("PX", "1050")
		waiter := await(t, d, "shared")
		waiting := time.Now()
		o := receive(t, waiter, bound)
		release(t, d, "shared", o.owner)
		if took := time.Since(began); took < 1040*time.Millisecond {
			t.Fatalf("granted %v after a foreign lock of 1050 ms was made", took)
		}
		return time.Since(waiting) <= 1400*time.Millisecond
	})
}

func TestPlainAndQueueModeExcludeEachOther(t *testing.T) {
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), nil)
	p := plainOn(t, server.Addr(), nil)
	owner, _ := take(t, d, "shared")
	mine := driver.Request{Name: "shared", Owner: newOwner(), NoWait: true}
	if _, err := p.Acquire(t.Context(), mine); !errors.Is(err, interlock.ErrHeld) {
		t.Fatalf("plain while queue mode holds: %v", err)
	}
	release(t, d, "shared", owner)
	if _, err := p.Acquire(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), driver.Request{Name: "shared", Owner: newOwner(), NoWait: true}); !errors.Is(err, interlock.ErrHeld) {
		t.Fatalf("queue mode while plain holds: %v", err)
	}
	testbed.OK(t, p.Release(t.Context(), "shared", mine.Owner))
	if _, more, err := p.Locks(t.Context(), "", 10); err == nil || more {
		t.Fatal("plain without a prefix listed strings of any client")
	}
}

func TestNobodyBargesPastALiveWaiter(t *testing.T) {
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	a, b, c := openOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil)
	take(t, a, "x")
	waiting := await(t, b, "x")
	mustDo(t, operator, "DEL", "x")
	// The lock is free and b does not know it yet. c is refused, and b gets it.
	_, err := c.Acquire(t.Context(), driver.Request{Name: "x", Owner: newOwner(), NoWait: true})
	o := receive(t, waiting, bound)
	var held *interlock.HeldError
	if !errors.As(err, &held) || held.Owner != o.owner {
		t.Fatalf("the newcomer got %v, want that %s has it", err, o.owner)
	}
	release(t, b, "x", o.owner)
}
