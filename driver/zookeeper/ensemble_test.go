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
	const ttl = 16 * time.Second
	e := testbed.ZooKeeperEnsemble(t, 3)
	a := open(t, &Options{Servers: e.Addrs(), TTL: ttl})
	b := open(t, &Options{Servers: e.Addrs(), TTL: ttl})
	holder := demand("n", "holder")
	first := mustAcquire(t, a, holder)
	waiter := demand("n", "waiter")
	done := enqueue(t, b, waiter)
	e.Leader().Kill()
	killed, left := time.Now(), first.Lease.Remaining()
	e.Leader()
	testbed.Eventually(t, "a renewal by the next leader", patience, func() bool {
		return first.Lease.Remaining() > left-time.Since(killed)+time.Second
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

// TestClaimEndsBeforeTheSessionOfACutFollower: servers report the activity of their clients to the
// leader twice a tick. A claim does not rely on activity that may not be reported yet.
func TestClaimEndsBeforeTheSessionOfACutFollower(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	e := testbed.ZooKeeperEnsemble(t, 3, "tickTime=400")
	leader := e.Leader()
	follower := e.Peers[0]
	if follower == leader {
		follower = e.Peers[1]
	}
	d := open(t, &Options{Servers: []string{follower.Addr()}, TTL: ttl})
	holder := demand("n", "holder")
	renewed := make(chan error, 100)
	holder.Events.Renewed = func(_ time.Duration, err error) { renewed <- err }
	claim := mustAcquire(t, d, holder)
	for n := 0; n < 5; {
		if testbed.Receive(t, renewed, "a renewal") == nil {
			n++
		}
	}
	follower.Pause()
	defer follower.Resume()
	mustAcquire(t, open(t, &Options{Servers: []string{leader.Addr()}, TTL: ttl}), demand("n", "next"))
	if left := claim.Lease.Remaining(); left > 0 {
		t.Fatalf("the next contender holds, and the claim has %v left", left)
	}
}
