package redis

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// lives returns the time to live of key.
func lives(t *testing.T, client rueidis.Client, key string) time.Duration {
	t.Helper()
	return time.Duration(number(t, client, "PTTL", key)) * time.Millisecond
}

// Late answers must not extend a lease. Each way of getting one is tested over a
// slow path.
func TestDeadlinesCountFromTheRequest(t *testing.T) {
	t.Parallel()
	const ttl, delay = 3 * time.Second, 200 * time.Millisecond
	const most = ttl - ttl/100 - 2*delay
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	renewed := make(chan struct{}, 16)
	slow, fast := openOn(t, path.Addr(), &Options{TTL: ttl}), openOn(t, server.Addr(), &Options{TTL: ttl})
	path.Delay(delay)
	must := func(what string, l driver.Lease) {
		t.Helper()
		if left := l.Remaining(); left > most || left < most-time.Second {
			t.Errorf("%s: %v remain, want at most %v and not much less", what, left, most)
		}
	}

	grant, err := slow.Acquire(t.Context(), driver.Request{Name: "free", Owner: newOwner(), Events: driver.Events{
		Renewed: func(time.Duration, error) { renewed <- struct{}{} }}})
	testbed.OK(t, err)
	must("uncontended", grant.Lease)
	testbed.Receive(t, renewed, "a renewal")
	must("renewed", grant.Lease)

	owner, _ := take(t, fast, "pushed")
	waiting := await(t, slow, "pushed")
	release(t, fast, "pushed", owner)
	must("pushed", receive(t, waiting, bound).grant.Lease)

	slow.pushes.stop(t.Context())
	owner, _ = take(t, fast, "found")
	waiting = await(t, slow, "found")
	release(t, fast, "found", owner)
	must("found by a heartbeat", receive(t, waiting, bound).grant.Lease)
	path.Delay(0)
}

// A confirmed grant lives for the whole TTL.
func TestConfirmationLastsForTheTTL(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	a, b := openOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil)
	owner, _ := take(t, a, "x")
	waiting := await(t, b, "x")
	release(t, a, "x", owner)
	receive(t, waiting, bound)
	testbed.Eventually(t, "it lives for a whole TTL", bound, func() bool { return lives(t, operator, "x") > DefaultTTL-5*time.Second })

	owner, _ = take(t, a, "z")
	mustDo(t, operator, "PEXPIRE", "z", "1000")
	if _, err := a.contend(t.Context(), newWaiter(driver.Request{Name: "z", Owner: owner}, "z"), refresh); err != nil {
		t.Fatal(err)
	}
	if left := lives(t, operator, "z"); left < DefaultTTL-5*time.Second {
		t.Errorf("after the confirmation it lives for %v", left)
	}
}

// A repeated request of the same owner is a renewal too, in plain mode as well.
func TestRepeatedPlainAcquireExtends(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	p := plainOn(t, server.Addr(), nil)
	r := driver.Request{Name: "x", Owner: newOwner(), NoWait: true}
	ttl := strconv.FormatInt((5 * time.Second).Milliseconds(), 10)
	if err := raw(t, operator, "SET", "x", r.Owner, "PX", ttl).Error(); err != nil { // its reply was lost some time ago
		t.Fatal(err)
	}
	if _, err := p.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if left := lives(t, operator, "x"); left < DefaultTTL-5*time.Second {
		t.Errorf("the lock lives for %v, its holder canUse in %v", left, DefaultTTL)
	}
}
