package zookeeper

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func acquireEach(t *testing.T, d *Driver) func(i int) error {
	return func(i int) error {
		_, err := d.Acquire(bounded(t), driver.Request{Name: fmt.Sprint("n", i), Owner: "me"})
		return err
	}
}

func releaseEach(t *testing.T, d *Driver) func(i int) error {
	return func(i int) error { return d.Release(bounded(t), fmt.Sprint("n", i), "me") }
}

// TestCallsThatWaitShareARequest: one for the acquires, which need no lists of their queues from
// the third in a row on, and one for the releases.
func TestCallsThatWaitShareARequest(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d := open(t, &Options{Servers: []string{server.Addr()}})
	const names = 40
	for i := range 2 * names {
		testbed.OK(t, acquireEach(t, d)(i%names))
		testbed.OK(t, releaseEach(t, d)(i%names))
	}
	before := count(t, server, "zk_packets_received")
	drivertest.Together(t, &d.entries, names, acquireEach(t, d))
	// the reports are counted too, and a ping or a renewal may be among them
	if got := count(t, server, "zk_packets_received") - before; got > names/2 {
		t.Errorf("%d requests for %d acquires", got, names)
	}
	conn := dial(t, server.Addr())
	for i := range names {
		at, ok := d.Contender(fmt.Sprint("n", i), "me")
		exists, stat, err := conn.Exists(at.Path)
		if !ok || err != nil || !exists || stat.Czxid != at.Czxid || stat.EphemeralOwner != at.Session {
			t.Fatalf("contender %d is at %+v: %v %+v %v", i, at, exists, stat, err)
		}
	}
	testbed.Eventually(t, "the claims are watched", patience, func() bool { return len(d.session.unwatched()) == 0 })
	before = count(t, server, "zk_packets_received")
	drivertest.Together(t, &d.removals, names, func(i int) error {
		hints.Signal(d.maintainNow) // as at a heartbeat
		return releaseEach(t, d)(i)
	})
	if got := count(t, server, "zk_packets_received") - before; got > names/2 {
		t.Errorf("%d requests for %d releases", got, names)
	}
	for i := range names {
		if left, _, err := conn.Children(fmt.Sprint("/interlock/n", i)); err != nil || len(left) > 0 {
			t.Errorf("left are %q, %v", left, err)
		}
	}
}

// TestRefusedTogetherAreSentAlone: some of the locks have no node yet, and one of the nodes to
// delete is gone.
func TestRefusedTogetherAreSentAlone(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d := open(t, &Options{Servers: []string{server.Addr()}})
	testbed.OK(t, acquireEach(t, d)(0))
	testbed.OK(t, releaseEach(t, d)(0))
	drivertest.Together(t, &d.entries, 5, acquireEach(t, d))
	for i := range 5 {
		if _, ok := d.Contender(fmt.Sprint("n", i), "me"); !ok {
			t.Errorf("%d is not held", i)
		}
	}
	drivertest.Together(t, &d.removals, 6, func(i int) error {
		if i == 5 {
			_, err := d.removals.Do(bounded(t), "gone", removal{d.session, "n0", "/interlock/n0/gone"})
			return err
		}
		return releaseEach(t, d)(i)
	})
	conn := dial(t, server.Addr())
	for i := range 5 {
		if left, _, err := conn.Children(fmt.Sprint("/interlock/n", i)); err != nil || len(left) > 0 {
			t.Errorf("left are %q, %v", left, err)
		}
	}
}

// TestLateRefusalTogether: a shared request is refused after its callers have stopped waiting. They can repeat their calls.
func TestLateRefusalTogether(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	const opMulti = 14
	var slow atomic.Bool
	goOn := make(chan struct{})
	d := open(t, &Options{Servers: []string{server.Addr()}, TTL: 8 * time.Second, Dial: tapped(func() *tap {
		return &tap{sending: func(op uint32, body []byte) {
			if op == opMulti && bytes.Count(body, []byte("-lock-")) == 2 {
				slow.Store(true)
			}
		}, received: func([]byte, bool) bool {
			if slow.Load() {
				<-goOn
			}
			return true
		}}
	})})
	drivertest.Together(t, &d.entries, 2, func(i int) error { // the locks have no nodes yet
		if err := acquireEach(t, d)(i); interlock.Kind(err) != interlock.Uncertain || err == nil {
			return fmt.Errorf("without an answer: %w", err)
		}
		return nil
	})
	close(goOn)
	for i := range 2 {
		testbed.Eventually(t, "the lock is held", patience, func() bool { return acquireEach(t, d)(i) == nil })
		testbed.OK(t, releaseEach(t, d)(i))
	}
}
