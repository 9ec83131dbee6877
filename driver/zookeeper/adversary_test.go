package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestBaseThatWasMadeAnew: a new base with the versions of the old one is distinguished
// from it: a process that relied on the old one reads the new one first.
func TestBaseThatWasMadeAnew(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	old := open(t, &Options{Servers: []string{server.Addr()}})
	mustAcquire(t, old, demand("n", "before"))
	mustRelease(t, old, demand("n", "before"))
	removeTree(t, operator, "/interlock/interlock.base")
	next := open(t, &Options{Servers: []string{server.Addr()}})
	first := mustAcquire(t, next, demand("n", "next"))
	mustRelease(t, next, demand("n", "next"))
	if g := mustAcquire(t, old, demand("n", "old")); g.Token <= first.Token {
		t.Fatalf("token %d after %d", g.Token, first.Token)
	}
}

// TestManyOpenAtOnce: each session raises the base, and none prevents the others from it.
func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	drivertest.OpenAtOnce(t, 40, func(ctx context.Context, _ int) (interface{ Close(context.Context) error }, error) {
		return Open(ctx, &Options{Servers: []string{server.Addr()}})
	})
}

// TestNoMajorityNoRenewal: a leader that has lost its majority does not notice at once, and cannot
// renew a session.
func TestNoMajorityNoRenewal(t *testing.T) {
	t.Parallel()
	e := testbed.ZooKeeperEnsemble(t, 3)
	leader := e.Leader()
	d := open(t, &Options{Servers: []string{leader.Addr()}, TTL: 20 * time.Second})
	r := demand("n", "me")
	renewed := make(chan error, 100)
	r.Events.Renewed = func(_ time.Duration, err error) { renewed <- err }
	mustAcquire(t, d, r)
	for _, s := range e.Peers {
		if s != leader {
			s.Pause()
			defer s.Resume()
		}
	}
	s, err := d.current(t.Context())
	testbed.OK(t, err)
	hints.Signal(s.checkNow)
	if err := testbed.Receive(t, renewed, "an attempt to renew"); err == nil {
		t.Fatal("renewed by a leader without followers")
	}
}

// TestWaiterWhoseNodeWasWritten: a waiter notices the deletion of its node although another client
// wrote into it before.
func TestWaiterWhoseNodeWasWritten(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	d := open(t, &Options{Servers: []string{server.Addr()}})
	holder, waiter := demand("n", "holder"), demand("n", "waiter")
	mustAcquire(t, d, holder)
	done := enqueue(t, d, waiter)
	d.mu.Lock()
	node := d.contenders[identity{"n", "waiter"}].node
	d.mu.Unlock()
	_, err := operator.Set(node, []byte("x"), -1)
	testbed.OK(t, err)
	mustRelease(t, d, holder)
	if o := testbed.Receive(t, done, "the waiter"); o.Err != nil {
		t.Fatal(o.Err)
	}
	testbed.OK(t, operator.Delete(node, -1))
	if cause := testbed.Receive(t, waiter.Lost, "word of the loss"); !errors.Is(cause, interlock.ErrLost) {
		t.Fatalf("cause %v", cause)
	}
}

// TestShorterSessionEndsClaims: claims end if a server continues their session for a shorter time
// than was granted.
func TestShorterSessionEndsClaims(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	path := testbed.NewProxy(t, server.Addr())
	var grants atomic.Uint32 // the granted milliseconds; 0 means the requested ones
	shorten := func(packet []byte, greeting bool) bool {
		if ms := grants.Load(); greeting && ms > 0 {
			binary.BigEndian.PutUint32(packet[4:], ms) // after the version
		}
		return true
	}
	d := open(t, &Options{Servers: []string{path.Addr()}, TTL: 20 * time.Second,
		Dial: tapped(func() *tap { return &tap{received: shorten} })})
	grant := mustAcquire(t, d, demand("n", "me"))
	grants.Store(2000)
	path.CutAfter(0)
	_, _ = d.Lock(bounded(t), "n") // its answer is cut
	testbed.Eventually(t, "the claim ends", patience/4, func() bool { return grant.Lease.Remaining() <= 0 })
	next := mustAcquire(t, d, demand("m", "me"))
	if left := next.Lease.Remaining(); left > 2*time.Second {
		t.Fatalf("the next lasts for %v", left)
	}
}

// TestWatchSaysThatItWasInterrupted, after the connection was replaced.
func TestWatchSaysThatItWasInterrupted(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	path := testbed.NewProxy(t, server.Addr())
	var k keyhole
	d := open(t, &Options{Servers: []string{path.Addr()}, TTL: 6 * time.Second, Dial: k.dial})
	told := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Watch(ctx, "", func(name string) { told <- name }) }()
	if name := testbed.Receive(t, told, "the beginning"); name != "" {
		t.Fatalf("first %q", name)
	}
	k.reconnect(t, path, d)
	if name := testbed.Receive(t, told, "word of the interruption"); name != "" {
		t.Fatalf("after an interruption %q", name)
	}
	cancel()
	if err := testbed.Receive(t, done, "the end"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestBaseIsMadeAnewByTheClock: a process creates the base again that has not seen the last
// raise, and no other process remains that has.
func TestBaseIsMadeAnewByTheClock(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	old := open(t, &Options{Servers: []string{server.Addr()}})
	mustAcquire(t, old, demand("n", "before"))
	mustRelease(t, old, demand("n", "before"))
	later, err := Open(t.Context(), &Options{Servers: []string{server.Addr()}})
	testbed.OK(t, err)
	last := mustAcquire(t, later, demand("n", "later"))
	mustRelease(t, later, demand("n", "later"))
	testbed.OK(t, later.Close(t.Context()))
	removeTree(t, operator, "/interlock/interlock.base")
	if g := mustAcquire(t, old, demand("n", "old")); g.Token <= last.Token {
		t.Fatalf("token %d after %d", g.Token, last.Token)
	}
}

// openAmidChanges opens a driver while its base may change, and retries, since Open gives up after
// some changes. The driver is closed with the test.
func openAmidChanges(t *testing.T, addr string) *Driver {
	var d *Driver
	testbed.Eventually(t, "a driver opens", 20*time.Second, func() (ok bool) {
		var err error
		d, err = Open(t.Context(), &Options{Servers: []string{addr}})
		return err == nil
	})
	t.Cleanup(func() { _ = d.Close(context.Background()) }) // it may be closed already
	return d
}

// TestTokensRiseWhateverBecomesOfTheBase, which an operator deletes repeatedly, while processes
// open and close.
func TestTokensRiseWhateverBecomesOfTheBase(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var inside atomic.Int32
	var last, grants atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i := range 5 {
		all.Go(func() {
			d := openAmidChanges(t, server.Addr())
			for n := 0; ctx.Err() == nil; n++ {
				if i == 0 && n%20 == 19 { // this one opens and closes
					_ = d.Close(t.Context())
					d = openAmidChanges(t, server.Addr())
				}
				r := demand("n", fmt.Sprintf("%d/%d", i, n))
				g, err := d.Acquire(ctx, r.Request)
				if err == nil {
					if inside.Add(1) != 1 {
						t.Error("two hold it")
					}
					if former := last.Swap(int64(g.Token)); former >= int64(g.Token) {
						t.Errorf("token %d after %d", g.Token, former)
					}
					grants.Add(1)
					inside.Add(-1)
				}
				mustRelease(t, d, r)
			}
		})
	}
	for ctx.Err() == nil && (grants.Load() < 50 || time.Since(began) < 3*time.Second) {
		time.Sleep(50 * time.Millisecond)
		list, _, _ := operator.Children("/interlock/interlock.base")
		for _, mark := range list {
			_ = operator.Delete("/interlock/interlock.base/"+mark, -1)
		}
		_ = operator.Delete("/interlock/interlock.base", -1)
	}
	cancel()
	all.Wait()
	if grants.Load() < 50 {
		t.Fatalf("only %d grants", grants.Load())
	}
}
