package lock_test

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	name = "accounts/42"
	ttl  = 6 * time.Second
)

// bench is one space and the processes on it.
type bench struct {
	*testing.T
	space *memory.Space
}

func inBubble(t *testing.T, test func(*bench)) {
	virtual.Test(t, func(t *testing.T) {
		test(&bench{t, memory.NewSpace()})
	})
}

// process opens a driver with a lock on it, both closed at the end.
func (b *bench) process(o *lock.Options) (*lock.Fenced, *faulty) {
	b.Helper()
	d := &faulty{Driver: b.space.Open(&memory.Options{TTL: ttl})}
	locks, err := lock.NewFenced(d, o)
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	testbed.CloseAfter(b, locks)
	return locks, d
}

func (b *bench) acquire(l *lock.Fenced) *lock.Claim {
	b.Helper()
	return b.acquireNamed(l, name)
}

func (b *bench) acquireNamed(l *lock.Fenced, name string) *lock.Claim {
	b.Helper()
	c, err := l.Acquire(b.Context(), name)
	testbed.OK(b, err)
	return c
}

// queue starts to acquire the lock, and returns when it waits.
func (b *bench) queue(l *lock.Fenced) <-chan *lock.Claim {
	done := make(chan *lock.Claim, 1)
	go func() { done <- b.acquire(l) }()
	synctest.Wait()
	return done
}

func (b *bench) release(c *lock.Claim) {
	b.Helper()
	testbed.OK(b, c.Release(b.Context()))
}

// residue is who holds and waits.
func (b *bench) residue() int {
	state, _ := b.space.Open(nil).Lock(b.Context(), name)
	n := len(state.Waiters)
	if state.Holder != nil {
		n++
	}
	return n
}

// mustBeEmpty requires that nothing is left in the backend.
func (b *bench) mustBeEmpty() {
	b.Helper()
	if left := b.residue(); left != 0 {
		b.Errorf("left: %+v", left)
	}
}

// faulty is a driver whose answers can be lost, and whose leases can be stopped.
type faulty struct {
	*memory.Driver

	mu            sync.Mutex
	loseAcquires  int // this many answers to Acquire are lost
	loseReleases  int
	refuse        error // what every Acquire answers, if set
	refuseAll     error // what every AcquireAll answers, if set
	endWith       error // what an Acquire that has failed answers, if set
	refuseRelease error // what every Release answers, if set
	acquires      int
	batches       int
	during        func() // is called before AcquireAll asks
	releases      int
	owners        []string
	last          driver.Request
	stopped       bool          // leases say that their time is over, whatever the timers
	shorter       time.Duration // leases say that they have so much less
	afterAcquired func()
	loses         string // the name whose loss is reported once, before its grant
}

var errReplyLost = &interlock.Error{Op: "test", Kind: interlock.Uncertain, Err: errors.New("the reply was lost")}

func (f *faulty) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	f.mu.Lock()
	f.acquires++
	f.owners, f.last = append(f.owners, r.Owner), r
	refuse, lose := f.refuse, f.loseAcquires > 0
	if lose {
		f.loseAcquires--
	}
	f.mu.Unlock()
	if refuse != nil {
		return driver.Grant{}, refuse
	}
	g, err := f.Driver.Acquire(ctx, r)
	if err != nil && f.endWith != nil {
		return g, f.endWith
	}
	if err == nil && f.afterAcquired != nil {
		f.afterAcquired()
	}
	if lose {
		return driver.Grant{}, errReplyLost
	}
	if err == nil {
		g.Lease = stoppable{g.Lease, f}
	}
	return g, err
}

// AcquireAll counts in batches, and as one of the acquires whose answers are lost.
func (f *faulty) AcquireAll(ctx context.Context, requests []driver.Request) ([]driver.Grant, error) {
	f.mu.Lock()
	f.batches++
	refuse, during, lose := cmp.Or(f.refuseAll, f.refuse), f.during, f.loseAcquires > 0
	if lose {
		f.loseAcquires--
	}
	f.mu.Unlock()
	if during != nil {
		during()
	}
	if refuse != nil {
		return nil, refuse
	}
	grants, err := f.Driver.AcquireAll(ctx, requests)
	if err == nil && f.afterAcquired != nil {
		f.afterAcquired()
	}
	for _, r := range requests {
		if r.Name == f.loses {
			f.loses = ""
			r.Events.Lost(interlock.ErrLost)
		}
	}
	if lose {
		return nil, errReplyLost
	}
	for i, g := range grants {
		grants[i].Lease = stoppable{g.Lease, f}
	}
	return grants, err
}

func (f *faulty) Release(ctx context.Context, name, owner string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := f.Driver.Release(ctx, name, owner)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.releases++
	if f.loseReleases > 0 {
		f.loseReleases--
		return errReplyLost
	}
	return cmp.Or(f.refuseRelease, err)
}

func (f *faulty) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

type stoppable struct {
	driver.Lease
	f *faulty
}

func (s stoppable) Remaining() time.Duration {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.stopped {
		return 0
	}
	return s.Lease.Remaining() - s.f.shorter
}
