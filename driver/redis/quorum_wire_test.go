package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestWires: requests of several callers over wires, names that are held, and a repeated acquire.
func TestWires(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	q, other := quorumOn(t, servers, QuorumOptions{}), quorumOn(t, servers, QuorumOptions{})
	openWires(t, q)
	openWires(t, other)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 20 {
				r := driver.Request{Name: fmt.Sprint("n/", i), Owner: newOwner()}
				takeQuorum(t, q, r)
				testbed.OK(t, q.Release(t.Context(), r.Name, r.Owner))
			}
		})
	}
	all.Wait()
	mine := driver.Request{Name: "x", Owner: newOwner()}
	takeQuorum(t, q, mine)
	takeQuorum(t, q, mine)
	seen := make(chan driver.Place, 1)
	theirs := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{Waiting: func(p driver.Place) { seen <- p }}}
	granted := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), theirs)
		granted <- err
	}()
	if p := testbed.Receive(t, seen, "a refusal"); p.Holder != mine.Owner {
		t.Errorf("the holder is %q, want %q", p.Holder, mine.Owner)
	}
	testbed.OK(t, q.Release(t.Context(), "x", mine.Owner))
	testbed.OK(t, testbed.Receive(t, granted, "the grant"))
	testbed.OK(t, other.Release(t.Context(), "x", theirs.Owner))
	settle(t, q)
	settle(t, other)
	for i, holder := range servers.holders(t, "x") {
		if holder != "" {
			t.Errorf("node %d keeps %q", i, holder)
		}
	}
}

// TestWireEnds when it breaks, is unused, or the node is silent. Others are opened.
func TestWireEnds(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	q := quorumOn(t, servers, QuorumOptions{})
	pair := func() {
		t.Helper()
		owner := newOwner()
		takeQuorum(t, q, driver.Request{Name: owner, Owner: owner})
		testbed.OK(t, q.Release(t.Context(), owner, owner))
	}
	for name, end := range map[string]func(w *wire){
		"broken": func(w *wire) { testbed.OK(t, w.conn.Close()) },
		"unused": func(w *wire) { testbed.OK(t, w.conn.SetReadDeadline(time.Unix(1, 0))) },
	} {
		openWires(t, q)
		for _, n := range q.nodes {
			w := n.wire.Load()
			if w == nil {
				continue // it was unused for long
			}
			end(w)
			testbed.Eventually(t, name+": the wire is gone", bound, func() bool { return n.wire.Load() != w })
		}
		pair()
	}
	for _, unread := range []*wire{{}, {calls: []*call{{}}}} {
		if unread.answer("?\r\n") == nil {
			t.Error("an answer to no call, or of another kind, ends no wire")
		}
	}
	openWires(t, q)
	silent := q.nodes[4].wire.Load()
	servers[4].Pause()
	testbed.Eventually(t, "the silent wire is gone", bound, func() bool {
		pair()
		return q.nodes[4].wire.Load() != silent
	})
	servers[4].Resume()
	openWires(t, q)
}

// TestNoWireToAYoungNode: votes on a wire count without an uptime.
func TestNoWireToAYoungNode(t *testing.T) {
	t.Parallel()
	q := quorumOn(t, startFive(t), QuorumOptions{RestartDelay: time.Hour})
	w, client, err := q.openWire(q.nodes[0])
	if !errors.Is(err, errNotReady) {
		t.Fatal(err)
	}
	w.detach()
	client.Close()
}

// TestWireKeepsOrder: a request on the client's connection keeps later ones of its owner from the
// wire, and one on the wire keeps them there.
func TestWireKeepsOrder(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	var clients []rueidis.Client
	for _, s := range servers {
		option, settings, err := clientOption("redis://" + s.Addr())
		testbed.OK(t, err)
		option.ConnWriteTimeout = bound
		client, err := Connect(option, settings)
		testbed.OK(t, err)
		t.Cleanup(client.Close)
		clients = append(clients, client)
	}
	q, err := OpenQuorum(t.Context(), clients, &QuorumOptions{RestartDelay: -1, TTL: 2 * time.Minute, NodeTimeout: 30 * time.Second})
	testbed.OK(t, err)
	testbed.CloseAfter(t, q)
	q.silence = bound // connections and wires stay while the servers are stopped
	openWires(t, q)
	owner := newOwner()
	n := q.nodes[0]
	earlier := &pending[int]{send: func(context.Context) (int, error) { return 0, nil }}
	earlier.begin(t.Context(), n.conn, request{owner: owner})
	if n.wireFor(owner) != nil || n.wireFor("another") == nil {
		t.Error("a request overtakes an earlier one of its owner")
	}
	earlier.run()
	for _, s := range servers {
		s.Pause()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := q.Acquire(ctx, driver.Request{Name: "x", Owner: owner}); interlock.Kind(err) != interlock.Uncertain {
		t.Fatalf("silent nodes: %v", err)
	}
	released, again := make(chan error, 1), make(chan error, 1)
	go func() { released <- q.Release(t.Context(), "x", owner) }()
	r := driver.Request{Name: "x", Owner: owner, NoWait: true}
	testbed.Eventually(t, "the release is on the wire", bound, func() bool { return len(waitingOn(n.wire.Load())) == 2 })
	go func() {
		_, err := q.Acquire(t.Context(), r)
		again <- err
	}()
	testbed.Eventually(t, "the acquire is on the wire", bound, func() bool { return len(waitingOn(n.wire.Load())) == 3 })
	for _, s := range servers {
		s.Resume()
	}
	if err := testbed.Receive(t, released, "the release"); err != nil && !errors.Is(err, errNoMajority) {
		t.Error(err)
	}
	testbed.OK(t, testbed.Receive(t, again, "the repeated acquire"))
	settle(t, q)
	for i, holder := range servers.holders(t, "x") {
		if holder != owner {
			t.Errorf("node %d has %q, want %q", i, holder, owner)
		}
	}
}

// waitingOn returns the calls without an answer.
func waitingOn(w *wire) []*call {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*call(nil), w.calls...)
}
