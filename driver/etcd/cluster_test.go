package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestClaimsSurviveTheLeader of three members: it is killed while others compete for
// a lock. A holder holds on, one at a time is granted the contested lock, and tokens
// rise.
func TestClaimsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	e := testbed.EtcdCluster(t, 3, "--unsafe-no-fsync")
	everywhere := func(c *clientv3.Config) { c.Endpoints = e.Addrs() }
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var contest contest
	var all sync.WaitGroup
	for range 2 {
		locks, err := lock.NewFenced(open(t, dial(t, "", everywhere), &Options{TTL: 5 * time.Second}), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close(context.WithoutCancel(ctx))
		for range 2 {
			all.Go(func() { contest.run(ctx, t, locks) })
		}
	}
	d := open(t, dial(t, "", everywhere), nil)
	lost := make(chan error, 1)
	held, err := d.Acquire(ctx, driver.Request{Name: "held", Owner: "holder",
		Events: driver.Events{Lost: func(cause error) { lost <- cause }}})
	if err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, "they compete", patience, func() bool { return contest.grants.Load() > 20 })
	leader := e.Leader()
	leader.Kill()
	before := contest.grants.Load()
	if next := e.Leader(); next == leader {
		t.Fatal("the killed member leads")
	}
	testbed.Eventually(t, "they go on", 3*patience, func() bool { return contest.grants.Load() > before+20 })
	contest.over.Store(true)
	all.Wait()
	if len(lost) > 0 || held.Lease.Remaining() <= 0 {
		t.Errorf("the claim was lost with the leader: %v, %v left", len(lost), held.Lease.Remaining())
	}
	if _, err := d.Acquire(ctx, driver.Request{Name: "held", Owner: "another", NoWait: true}); err == nil {
		t.Error("another is granted what is held")
	}
}

// contest is a lock that several want all the time.
type contest struct {
	grants atomic.Int64
	over   atomic.Bool
	mu     sync.Mutex
	last   interlock.Token
	holder string // whose claim is valid
}

func (c *contest) run(ctx context.Context, t *testing.T, locks *lock.Fenced) {
	for !c.over.Load() && ctx.Err() == nil {
		claim, err := locks.Acquire(ctx, "contested")
		if err != nil {
			if interlock.Kind(err) == interlock.Definite {
				t.Errorf("acquire: %v", err)
				return
			}
			continue
		}
		c.enter(t, claim)
		time.Sleep(time.Millisecond) // the work
		c.leave(claim)
		_ = claim.Release(ctx) // what is not confirmed lapses
	}
}

func (c *contest) enter(t *testing.T, claim *lock.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != "" || claim.Token() <= c.last {
		t.Errorf("token %d after %d, while %q holds", claim.Token(), c.last, c.holder)
	}
	c.holder, c.last = claim.Owner(), claim.Token()
	c.grants.Add(1)
}

func (c *contest) leave(claim *lock.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == claim.Owner() {
		c.holder = ""
	}
}
