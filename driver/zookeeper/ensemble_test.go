package zookeeper

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestClaimsSurviveTheLeader of three servers. An election moves the transaction ids by 2^32, and the
// tokens stay near the clock.
func TestClaimsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	e := testbed.ZooKeeperEnsemble(t, 3)
	of := func() *Driver { return open(t, &Options{Servers: e.Addrs(), TTL: 16 * time.Second}) }
	holder := of()
	drivertest.LeaderLoss(t, []driver.Fenced{of(), of()}, holder, func() {
		leader := e.Leader()
		leader.Kill()
		if e.Leader() == leader {
			t.Fatal("the killed server leads")
		}
	}, func() {
		late := demand("n", "late")
		if g := mustAcquire(t, holder, late); g.Token.Counter() > interlock.CounterAt(time.Now().Add(time.Minute)) {
			t.Fatalf("token %d", g.Token)
		}
		mustRelease(t, holder, late)
	})
}

// TestRunOutSessionIsClosed: a new leader keeps every session for a whole TTL. The nodes of a claim
// that ended during the election are removed before that.
func TestRunOutSessionIsClosed(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	e := testbed.ZooKeeperEnsemble(t, 3)
	claim := mustAcquire(t, open(t, &Options{Servers: e.Addrs(), TTL: ttl}), demand("n", "holder"))
	e.Peers[0].Kill()
	e.Peers[1].Kill()
	testbed.Eventually(t, "the claim is over", patience, func() bool { return claim.Lease.Remaining() <= 0 })
	e.Peers[0].Restart()
	e.Leader()
	next := open(t, &Options{Servers: e.Addrs(), TTL: ttl})
	opened := time.Now() // after the election
	mustAcquire(t, next, demand("n", "next"))
	if took := time.Since(opened); took >= ttl/2 {
		t.Errorf("the next contender holds %v after it opened, and the TTL is %v", took, ttl)
	}
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

// TestLateServerRefusesNothing: a request that does not wait is granted after a release that its
// server has not seen yet.
func TestLateServerRefusesNothing(t *testing.T) {
	t.Parallel()
	e := testbed.ZooKeeperEnsemble(t, 3)
	leader := e.Leader()
	follower := e.Peers[0]
	if follower == leader {
		follower = e.Peers[1]
	}
	asked := make(chan struct{}, 1)
	behind := open(t, &Options{Servers: []string{follower.Addr()}, TTL: 20 * time.Second, Dial: tapped(func() *tap {
		return &tap{sending: func(op uint32, _ []byte) {
			if op == opGetChildren {
				hints.Signal(asked)
			}
		}}
	})})
	ahead, operator := open(t, &Options{Servers: []string{leader.Addr()}}), dial(t, leader.Addr())
	for i := range 5 {
		holder, next := demand("n", fmt.Sprint("holder ", i)), demand("n", fmt.Sprint("next ", i))
		mustAcquire(t, ahead, holder)
		next.NoWait = true
		testbed.Eventually(t, "the follower sees the holder", patience, func() bool {
			_, err := behind.Acquire(bounded(t), next.Request)
			if err == nil {
				t.Fatal("granted twice")
			}
			return errors.Is(err, interlock.ErrHeld)
		})
		for len(asked) > 0 {
			<-asked
		}
		follower.Pause()
		var sets sync.WaitGroup
		for range 200 { // the follower has these to do first
			sets.Go(func() {
				if _, err := operator.Set("/interlock", nil, -1); err != nil {
					t.Error(err)
				}
			})
		}
		sets.Wait()
		mustRelease(t, ahead, holder)
		done := make(chan error, 1)
		go func() {
			_, err := behind.Acquire(bounded(t), next.Request)
			done <- err
		}()
		select {
		case <-asked:
		case err := <-done: // the pause took so long that the connection was given up
			done <- err
		}
		follower.Resume()
		err := testbed.Receive(t, done, "the answer")
		testbed.Eventually(t, "the answer", patience, func() bool {
			if err == nil || errors.Is(err, interlock.ErrHeld) {
				return true
			}
			_, err = behind.Acquire(bounded(t), next.Request) // a follower that was paused may drop its connections
			return false
		})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		mustRelease(t, behind, next)
	}
}
