package zookeeper

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestUncontendedCostsTwoRequests, both of them writes, from the third acquire in a row on: the
// first two list the queue, and the second sets a watch.
func TestUncontendedCostsTwoRequests(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d := open(t, &Options{Servers: []string{server.Addr()}})
	pair := func(owner string) {
		r := demand("a/b", owner)
		mustAcquire(t, d, r)
		mustRelease(t, d, r)
	}
	pair("creates the lock's node")
	pair("sets the watch")
	const rounds = 200
	before := count(t, server, "zk_packets_received")
	for i := range rounds {
		pair(fmt.Sprint(i))
	}
	// the reports are counted too, and a ping or a renewal may be among them
	if got := count(t, server, "zk_packets_received") - before; got < 2*rounds || got > 2*rounds+rounds/4 {
		t.Fatalf("%d requests for %d acquires and releases", got, rounds)
	}
}

// TestOneReleaseWakesOne of fifty waiters in five processes: the next one. The holder gets an event
// of its own node, too. The test counts goroutines, so it runs alone.
func TestOneReleaseWakesOne(t *testing.T) {
	const told = "zk_sum_node_deleted_watch_count"
	server := testbed.ZooKeeper(t)
	var processes []*Driver
	for range 5 {
		processes = append(processes, open(t, &Options{Servers: []string{server.Addr()}}))
	}
	holder := demand("hot", "holder")
	mustAcquire(t, processes[0], holder)
	const waiters = 50
	goroutines := runtime.NumGoroutine()
	var all []request
	var done []<-chan outcome
	for i := range waiters {
		r := demand("hot", fmt.Sprint("waiter ", i))
		all, done = append(all, r), append(done, enqueue(t, processes[i%5], r))
	}
	if more := runtime.NumGoroutine() - goroutines; more > waiters+10 {
		t.Errorf("%d more goroutines for %d waiters, which are one each", more, waiters)
	}
	before, packets := count(t, server, told), count(t, server, "zk_packets_received")
	mustRelease(t, processes[0], holder)
	if o := testbed.Receive(t, done[0], "the first waiter"); o.Err != nil {
		t.Fatal(o.Err)
	}
	if got := count(t, server, told) - before; got > 2 {
		t.Fatalf("one release was reported %d times", got)
	}
	// a delete and a list of the line; the rest are reports, pings and renewals
	if got := count(t, server, "zk_packets_received") - packets; got < 2 || got > 20 {
		t.Fatalf("one hand-over took %d requests", got)
	}
	for i, r := range all {
		if i > 0 {
			if o := testbed.Receive(t, done[i], r.Owner); o.Err != nil {
				t.Fatal(o.Err)
			}
		}
		mustRelease(t, processes[i%5], r)
	}
	if got := count(t, server, told) - before; got > 2*(waiters+1) {
		t.Fatalf("%d releases were reported %d times", waiters+1, got)
	}
}

// TestRefusalLeavesNoTrace: a request that does not wait leaves no node in the queue.
func TestRefusalLeavesNoTrace(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	holder, other := open(t, &Options{Servers: []string{server.Addr()}}), open(t, &Options{Servers: []string{server.Addr()}})
	mustAcquire(t, holder, demand("n", "holder"))
	_, before, err := dial(t, server.Addr()).Exists("/interlock/n")
	testbed.OK(t, err)
	r := demand("n", "late")
	r.NoWait = true
	if _, err := other.Acquire(bounded(t), r.Request); err == nil {
		t.Fatal("granted twice")
	}
	_, after, err := dial(t, server.Addr()).Exists("/interlock/n")
	if err != nil || after.Cversion != before.Cversion {
		t.Fatalf("it stood in line: %+v became %+v, %v", before, after, err)
	}
}

// watching counts the requests of a driver with operation op that set a watch.
func watching(set *atomic.Int64, op uint32) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return tapped(func() *tap {
		return &tap{sending: func(sent uint32, body []byte) {
			if sent == op && body[len(body)-1] == 1 {
				set.Add(1)
			}
		}}
	})
}

// TestCallsOfWatchShareWatches: a call of Watch sets no watch that an earlier one has set. The client
// keeps what it needs for a watch until the node changes.
func TestCallsOfWatchShareWatches(t *testing.T) {
	t.Parallel()
	var set atomic.Int64
	d := open(t, &Options{Servers: []string{borrow(t).Addr()}, Dial: watching(&set, opGetChildren)})
	holder := demand("n", "holder")
	mustAcquire(t, d, holder)
	receive := func(from []chan string, what string) {
		for _, told := range from {
			for testbed.Receive(t, told, what) != "n" {
			}
		}
	}
	watch := func() (told chan string, end func()) {
		told = make(chan string, 100)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Watch(ctx, "", func(name string) { told <- name }) }()
		if name := testbed.Receive(t, told, "the beginning"); name != "" {
			t.Fatalf("first %q", name)
		}
		return told, func() {
			cancel()
			testbed.Receive(t, done, "the end")
		}
	}
	for range 5 {
		_, end := watch()
		end()
	}
	if got := set.Load(); got != 2 {
		t.Fatalf("%d watches of the root and one lock", got)
	}
	first, endFirst := watch()
	defer endFirst()
	second, endSecond := watch()
	defer endSecond()
	for i := range 3 {
		mustRelease(t, d, holder)
		receive([]chan string{first, second}, "the release")
		holder = demand("n", fmt.Sprint("holder ", i))
		mustAcquire(t, d, holder)
		receive([]chan string{first, second}, "the grant")
	}
}

// TestWaitersShareAWatch: waiters of one process set one watch on the holder's node, even if they
// come and go. The client keeps what it needs for a watch until the node changes.
func TestWaitersShareAWatch(t *testing.T) {
	t.Parallel()
	var set atomic.Int64
	d := open(t, &Options{Servers: []string{borrow(t).Addr()}, Dial: watching(&set, opGetData)})
	mustAcquire(t, d, demand("n", "holder"))
	for i := range 5 {
		r := demand("n", fmt.Sprint("waiter ", i))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, r.Request)
			done <- err
		}()
		if p := testbed.Receive(t, r.Waiting, "word of waiting"); p.Ahead != 0 || p.Holder == "" {
			t.Fatalf("received %+v", p)
		}
		cancel()
		testbed.Receive(t, done, "the end")
		mustRelease(t, d, r)
	}
	if got := set.Load(); got != 1 {
		t.Fatalf("%d watches on the holder's node", got)
	}
}
