package zookeeper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/group"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// together runs calls of do that share a request of g, except the first, which occupies
// the only place.
func together[Q, A any](t *testing.T, g *group.Group[Q, A], n int, do func(i int) error) {
	t.Helper()
	filled, free := make(chan struct{}), make(chan struct{})
	alone, requests, limit := g.Alone, g.Requests, g.Limit
	g.Requests, g.Limit = 1, time.Hour
	g.Alone = func(ctx context.Context, _ Q) (none A, err error) {
		close(filled)
		<-free
		return none, nil
	}
	errs := make(chan error, n+1)
	go func() {
		var none Q
		_, err := g.Do(t.Context(), "", none)
		errs <- err
	}()
	testbed.Receive(t, filled, "the one request")
	g.Alone = alone
	for i := range n {
		go func() { errs <- do(i) }()
	}
	testbed.Eventually(t, "the calls wait", patience, func() bool {
		select {
		case err := <-errs:
			t.Fatalf("%d wait, and one has an answer: %v", g.Waiting(), err)
		default:
		}
		return g.Waiting() == n
	})
	g.Requests, g.Limit = requests, limit
	close(free)
	for range n + 1 {
		testbed.OK(t, testbed.Receive(t, errs, "an answer"))
	}
}

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
	together(t, &d.entries, names, acquireEach(t, d))
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
	together(t, &d.removals, names, func(i int) error {
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
	together(t, &d.entries, 5, acquireEach(t, d))
	for i := range 5 {
		if _, ok := d.Contender(fmt.Sprint("n", i), "me"); !ok {
			t.Errorf("%d is not held", i)
		}
	}
	together(t, &d.removals, 6, func(i int) error {
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
