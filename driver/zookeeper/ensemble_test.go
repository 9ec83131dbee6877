package zookeeper

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestClaimsSurviveTheLeader kills the leader of three servers: the holder keeps its claim, the
// waiter keeps its place, and tokens rise.
func TestClaimsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	e := testbed.ZooKeeperEnsemble(t, 3)
	a := open(t, &Options{Servers: e.Addrs(), TTL: ttl})
	b := open(t, &Options{Servers: e.Addrs(), TTL: ttl})
	holder := demand("n", "holder")
	first := mustAcquire(t, a, holder)
	waiter := demand("n", "waiter")
	done := enqueue(t, b, waiter)
	e.Leader().Kill()
	killed := time.Now()
	e.Leader()
	testbed.Eventually(t, "a renewal by the next leader", patience, func() bool {
		return first.Lease.Remaining() > ttl*9/10 && time.Since(killed) > time.Second
	})
	select {
	case cause := <-holder.Lost:
		t.Fatalf("lost: %v", cause)
	case o := <-done:
		t.Fatalf("the waiter came back: %+v", o)
	default:
	}
	testbed.Eventually(t, "a release is confirmed", patience, func() bool {
		return a.Release(t.Context(), "n", "holder") == nil
	})
	o := testbed.Receive(t, done, "the waiter")
	for interlock.Kind(o.Err) != interlock.Definite && o.Err != nil { // as the portable types do
		o.Grant, o.Err = b.Acquire(bounded(t), waiter.Request)
	}
	if o.Err != nil || o.Token <= first.Token {
		t.Fatalf("token %d after %d, %v", o.Token, first.Token, o.Err)
	}
	mustRelease(t, b, waiter)
	// a client that opens after the election has its own base, near the clock
	late := demand("n", "late")
	g := mustAcquire(t, a, late)
	if g.Token <= o.Token || g.Token.Counter() > interlock.CounterAt(time.Now().Add(time.Minute)) {
		t.Fatalf("token %d after %d", g.Token, o.Token)
	}
	mustRelease(t, a, late)
}
