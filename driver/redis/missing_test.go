package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// An operator, or an eviction, can remove any single key of a name.
func remove(t *testing.T, operator rueidis.Client, key string) {
	t.Helper()
	if n, err := raw(t, operator, "DEL", key).AsInt64(); n != 1 || err != nil {
		t.Fatalf("%d keys deleted, %v", n, err)
	}
}

// queued returns the number of waiters for name.
func queued(t *testing.T, operator rueidis.Client, name string) int64 {
	t.Helper()
	return number(t, operator, "ZCARD", keysOf(name).queue)
}

// A place has two parts, in two keys. Waiters that lose one of them, or both, lose their
// place, take a new one, and are served.
func TestHalfAPlaceIsTakenAgain(t *testing.T) {
	t.Parallel()
	k := keysOf("x")
	for part, keys := range map[string][]string{"queue": {k.queue}, "wait": {k.wait}, "both": {k.queue, k.wait}} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			server := testbed.Redis(t)
			operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
			owner, _ := take(t, d, "x")
			first, second := await(t, d, "x"), await(t, d, "x")
			testbed.Eventually(t, "it is there", bound, func() bool {
				return number(t, operator, append([]string{"EXISTS"}, keys...)...) == int64(len(keys))
			})
			mustDo(t, operator, append([]string{"DEL"}, keys...)...)
			testbed.Eventually(t, "both are shown as waiting again", bound, func() bool { return len(show(t, d, "x").Waiters) == 2 })
			release(t, d, "x", owner)
			for range 2 {
				select {
				case o := <-first:
					served(t, d, o)
				case o := <-second:
					served(t, d, o)
				case <-time.After(bound):
					t.Fatal("a waiter is stuck")
				}
			}
		})
	}
}

func served(t *testing.T, d *Driver, o outcome) {
	t.Helper()
	if o.err != nil {
		t.Fatal(o.err)
	}
	release(t, d, "x", o.owner)
}

func show(t *testing.T, d *Driver, name string) driver.LockState {
	t.Helper()
	state, err := d.Lock(t.Context(), name)
	testbed.OK(t, err)
	return state
}

// A waiter with half a place that then gets the lock leaves no half.
func TestGrantClearsHalfAPlace(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	owner, _ := take(t, d, "x")
	waiting := await(t, d, "x")
	remove(t, operator, keysOf("x").queue)
	release(t, d, "x", owner)
	o := receive(t, waiting, bound)
	if n, err := raw(t, operator, "HLEN", keysOf("x").wait).AsInt64(); n != 0 || err != nil {
		t.Fatalf("%d are still known as waiting, %v", n, err)
	}
	served(t, d, o)
}

// A waiter whose queue was deleted is overtaken for a short time only.
func TestDeletedQueueStarvesNobody(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	a, b := openOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil)
	owner, _ := take(t, a, "x")
	waiting := await(t, b, "x")
	remove(t, operator, keysOf("x").queue)
	newcomer := driver.Request{Name: "x", Owner: owner, NoWait: true}
	testbed.Eventually(t, "the waiter is granted despite newcomers", bound, func() bool {
		release(t, a, "x", newcomer.Owner)
		newcomer.Owner = newOwner()
		_, err := a.Acquire(t.Context(), newcomer)
		if err != nil && !errors.Is(err, interlock.ErrHeld) {
			t.Fatal(err)
		}
		return err != nil
	})
	served(t, b, receive(t, waiting, bound))
}

// If another client writes the owner, the token is forgotten. The holder stays, and is
// renewed, but looks foreign; acquiring again gives a higher token.
func TestForeignValueRaisesTheToken(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	d := openOn(t, server.Addr(), nil)
	renewed := make(chan error, 64)
	r := driver.Request{Name: "x", Owner: newOwner(), TTL: DefaultTTL, Renew: DefaultTTL / 100, Events: driver.Events{
		Renewed: func(_ time.Duration, err error) { renewed <- err },
		Lost:    func(cause error) { renewed <- cause }}}
	first, err := d.Acquire(t.Context(), r)
	testbed.OK(t, err)
	mustDo(t, operator, "SET", "x", r.Owner, "KEEPTTL")
	if err := <-renewed; err != nil {
		t.Fatalf("the holder gets: %v", err)
	}
	if h := show(t, d, "x").Holder; h == nil || h.Owner != r.Owner || !h.Foreign {
		t.Fatalf("it is shown as %+v", h)
	}
	_, err = d.Acquire(t.Context(), driver.Request{Name: "x", Owner: newOwner(), NoWait: true})
	if err == nil || !strings.Contains(err.Error(), r.Owner) || interlock.Kind(err) != interlock.Retryable {
		t.Fatalf("another one gets %v", err)
	}
	again, err := d.Acquire(t.Context(), r)
	if err != nil || again.Token <= first.Token {
		t.Fatalf("asking again: token %v after %v, %v", again.Token, first.Token, err)
	}
	if h := show(t, d, "x").Holder; h == nil || h.Token != again.Token {
		t.Fatalf("then it is shown as %+v", h)
	}
	release(t, d, "x", r.Owner)
}

// TestReleaseLeavesTheQueue: nothing of a waiter stays behind it.
func TestReleaseLeavesTheQueue(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	take(t, d, "x")
	ctx, cancel := context.WithCancel(t.Context())
	r := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{Waiting: func(driver.Place) { cancel() }}}
	if _, err := d.Acquire(ctx, r); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	release(t, d, "x", r.Owner)
	if n, err := raw(t, operator, "HLEN", keysOf("x").wait).AsInt64(); n != 0 || err != nil || queued(t, operator, "x") != 0 {
		t.Fatalf("%d are still known, %v", n, err)
	}
}
