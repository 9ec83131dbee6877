package drivertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// LeaderLoss has drivers compete for a lock while kill kills the leader of their servers and waits
// for another. The holder's claim must not be lost; check may first let its driver detect that.
// The contested lock is granted to one driver at a time, and tokens rise.
func LeaderLoss(t *testing.T, competing []driver.Fenced, holder driver.Fenced, kill, check func()) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	var c contest
	var all sync.WaitGroup
	for _, d := range competing {
		locks, err := lock.NewFenced(d, nil)
		testbed.OK(t, err)
		defer locks.Close(context.WithoutCancel(ctx))
		for range 2 {
			all.Go(func() { c.run(ctx, t, locks) })
		}
	}
	held := Ask("held", "holder")
	grant := Acquire(t, holder, held)
	testbed.Eventually(t, "they compete", patience, func() bool { return c.grants.Load() > 20 })
	kill()
	before := c.grants.Load()
	testbed.Eventually(t, "they go on", 3*patience, func() bool { return c.grants.Load() > before+20 })
	c.over.Store(true)
	all.Wait()
	check()
	if len(held.Lost) > 0 || grant.Lease.Remaining() <= 0 {
		t.Errorf("the claim was lost with the leader: %v, %v left", len(held.Lost), grant.Lease.Remaining())
	}
	if _, err := holder.Acquire(ctx, driver.Request{Name: "held", Owner: "another", NoWait: true}); !errors.Is(err, interlock.ErrHeld) {
		t.Errorf("an acquire of a held lock returned %v", err)
	}
}

// contest is a lock for which several drivers always compete.
type contest struct {
	grants atomic.Int64
	over   atomic.Bool
	mu     sync.Mutex
	last   interlock.Token
	holder string // the owner of the valid claim
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
		time.Sleep(time.Millisecond) // hold the lock for a while
		c.leave(claim)
		_ = claim.Release(ctx) // an unconfirmed release expires
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
