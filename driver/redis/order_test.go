package redis

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// An abandoned acquire request may still be on its way into the client. The release
// after it must not overtake it.
func TestRequestsOfOneOwnerKeepTheirOrder(t *testing.T) {
	t.Parallel()
	testOrder(t, request{op: "acquire", owner: "me"})
	testOrder(t, request{op: "acquire all", owners: []string{"you", "me"}})
}

func testOrder(t *testing.T, acquire request) {
	t.Helper()
	c := newConn(nil)
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	given, giveUp := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := do(given, c, acquire, func(context.Context) (int, error) {
			close(entered)
			<-leave
			note("acquire")
			return 0, nil
		})
		first <- err
	}()
	<-entered
	giveUp()
	if err := <-first; interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, context.Canceled) {
		t.Fatalf("abandoned: %v", err)
	}
	send := func(owner, what string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := do(t.Context(), c, request{op: what, owner: owner}, func(context.Context) (int, error) {
				note(what)
				return 0, nil
			})
			done <- err
		}()
		return done
	}
	if err := <-send("another", "another's"); err != nil {
		t.Fatalf("another owner had to wait: %v", err)
	}
	// A caller that gives up waiting for its turn does not give away another's.
	impatient, tire := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer tire()
	if _, err := do(impatient, c, request{op: "release", owner: "me"}, func(context.Context) (int, error) {
		note("too early")
		return 0, nil
	}); interlock.Kind(err) != interlock.Uncertain {
		t.Fatalf("it should have tired of waiting: %v", err)
	}
	latest := func() chan struct{} {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.last["me"]
	}
	tired := latest()
	release := send("me", "release")
	testbed.Eventually(t, "the release queues up", bound, func() bool { return latest() != tired })
	close(leave)
	testbed.OK(t, <-release)
	if !slices.Equal(order, []string{"another's", "acquire", "release"}) {
		t.Fatalf("order: %v", order)
	}
	c.close()
	testbed.OK(t, c.wait(t.Context()))
	if len(c.last) != 0 {
		t.Fatalf("it remembers %d owners that have nothing under way", len(c.last))
	}
}

// A heartbeat sent while its waiter is released must not restore it.
func TestHeartbeatDoesNotReviveAReleasedOwner(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	r := driver.Request{Name: "a", Owner: newOwner()}
	k, w := keysOf("a"), newWaiter(r, "a")
	for _, held := range []bool{false, true} {
		if held {
			take(t, d, "a")
		}
		reply, err := d.contend(t.Context(), w, refresh)
		if err != nil || reply.status != statusGone {
			t.Fatalf("held %v: a heartbeat of a released owner got %+v, %v", held, reply, err)
		}
		if n, _ := raw(t, operator, "EXISTS", k.queue, k.wait).AsInt64(); n != 0 {
			t.Fatalf("held %v: it left a place", held)
		}
	}
}

// Pushes that were missed while the channel was lost are found at once after it
// reconnects.
func TestSubscriptionComesBack(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	d := openOn(t, path.Addr(), nil)
	operator := dial(t, server.Addr())
	for range 3 {
		path.Cut()
		path.Heal()
		testbed.Eventually(t, "it listens again", bound, func() bool { return listeners(t, operator, d) > 0 })
	}
	holder := openOn(t, server.Addr(), nil)
	owner, _ := take(t, holder, "a")
	waiting := await(t, d, "a")
	began := time.Now()
	release(t, holder, "a", owner)
	o := receive(t, waiting, bound)
	t.Logf("granted %v after the release", time.Since(began).Round(time.Microsecond))
	release(t, d, "a", o.owner)
}

// listeners counts the subscribers to d's pushes.
func listeners(t *testing.T, operator rueidis.Client, d *Driver) int64 {
	t.Helper()
	counts, err := raw(t, operator, "PUBSUB", "NUMSUB", d.pushes.channel).ToArray()
	testbed.OK(t, err)
	n, err := counts[1].AsInt64()
	testbed.OK(t, err)
	return n
}

// A silent waiter is skipped.
func TestSilentWaiterLosesItsPlace(t *testing.T) {
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	holder, dying, next := openOn(t, server.Addr(), nil), openOn(t, path.Addr(), nil), openOn(t, server.Addr(), nil)
	owner, _ := take(t, holder, "a")
	await(t, dying, "a")
	waiting := await(t, next, "a")
	path.Cut()
	operator := dial(t, server.Addr())
	testbed.Eventually(t, "one is left in the queue", bound, func() bool { return queued(t, operator, "a") == 1 })
	release(t, holder, "a", owner)
	o := receive(t, waiting, acceptFor/2)
	release(t, next, "a", o.owner)
	// A release before the next heartbeat of another waiter grants nothing to a silent one.
	owner, _ = take(t, holder, "b")
	waiting = await(t, next, "b")
	mustDo(t, operator, "ZADD", keysOf("b").queue, "1", next.pushes.channel+" silent") // which listens
	release(t, holder, "b", owner)
	if value, err := raw(t, operator, "GET", "b").ToString(); ownerIn(value) == "silent" || err != nil {
		t.Errorf("%q holds the lock: %v", value, err)
	}
	release(t, next, "b", receive(t, waiting, bound).owner)
}

// TestDisconnectedWaitersArePassedOver, so that several killed processes in a queue do not delay the
// next waiter. They keep their places, and are served if no other waiter is left.
func TestDisconnectedWaitersArePassedOver(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	holder, dying, next := openOn(t, server.Addr(), nil), openOn(t, path.Addr(), nil), openOn(t, server.Addr(), nil)
	operator := dial(t, server.Addr())
	owner, _ := take(t, holder, "a")
	const dead = 3
	for range dead {
		await(t, dying, "a")
	}
	waiting := await(t, next, "a")
	testbed.Eventually(t, "all have sent a heartbeat", bound, func() bool {
		return number(t, operator, "HLEN", keysOf("a").wait) == dead+1
	})
	path.Abandon()
	testbed.Eventually(t, "the server has closed their connections", bound, func() bool { return listeners(t, operator, dying) == 0 })
	release(t, holder, "a", owner)
	value, err := raw(t, operator, "GET", "a").ToString()
	testbed.OK(t, err)
	if n := queued(t, operator, "a"); n != dead {
		t.Errorf("%d waiters have kept their places, want %d", n, dead)
	}
	o := receive(t, waiting, bound)
	if ownerIn(value) != o.owner {
		t.Errorf("%q was served before a waiter that is connected", ownerIn(value))
	}
	release(t, next, "a", o.owner)
	if number(t, operator, "EXISTS", "a") != 1 {
		t.Error("no waiter was served")
	}
}
