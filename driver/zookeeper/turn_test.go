package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// kill ends a driver's connection for good, as if its process had died.
func kill(d *Driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.link.closeForGood()
}

// declaredIn counts the waiters of a lock that have declared themselves.
func declaredIn(operator *zk.Conn, lock string) (n int) {
	list, _, _ := operator.Children(lock)
	for _, name := range list {
		data, _, _ := operator.Get(lock + "/" + name)
		if r, ok := readRecord(data); ok && r.Unconfirmed {
			n++
		}
	}
	return n
}

func awaitDeclared(t *testing.T, operator *zk.Conn, lock string, want int) {
	t.Helper()
	testbed.Eventually(t, "the waiters have declared themselves", patience, func() bool {
		return declaredIn(operator, lock) >= want
	})
}

// TestKilledWaitersArePassedOver before their sessions end.
func TestKilledWaitersArePassedOver(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	var drivers []*Driver
	for range 4 {
		drivers = append(drivers, open(t, &Options{Servers: []string{server.Addr()}, TTL: 6 * time.Second}))
	}
	holder := demand("n", "holder")
	mustAcquire(t, drivers[0], holder)
	var last <-chan outcome
	for i, d := range drivers[1:] {
		last = enqueue(t, d, demand("n", fmt.Sprint("waiter ", i)))
	}
	awaitDeclared(t, dial(t, server.Addr()), "/interlock/n", 3)
	kill(drivers[1])
	kill(drivers[2])
	killed := time.Now()
	mustRelease(t, drivers[0], holder)
	testbed.OK(t, testbed.Receive(t, last, "the waiter behind two killed ones").Err)
	// a heartbeat until the release is seen, and one for each of them
	if took, heartbeat := time.Since(killed), drivers[3].session.pace.heartbeat; took > 5*heartbeat {
		t.Fatalf("two killed waiters cost %v, a heartbeat is %v", took, heartbeat)
	}
}

// TestLongQueueKeepsItsOrder: waiters that have declared themselves, and are alive, are served in
// order. Those far from the head do not declare themselves.
func TestLongQueueKeepsItsOrder(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d := open(t, &Options{Servers: []string{server.Addr()}, TTL: 2 * time.Second})
	last := demand("n", "holder")
	mustAcquire(t, d, last)
	var waiters []request
	var done []<-chan outcome
	for i := range 2 * near {
		r := demand("n", fmt.Sprint("waiter ", i))
		waiters, done = append(waiters, r), append(done, enqueue(t, d, r))
	}
	operator := dial(t, server.Addr())
	awaitDeclared(t, operator, "/interlock/n", near)
	before := count(t, server, "zk_packets_received")
	testbed.Eventually(t, "further heartbeats", patience, func() bool {
		return count(t, server, "zk_packets_received") > before+12*len(waiters)
	})
	if n := declaredIn(operator, "/interlock/n"); n != near {
		t.Fatalf("%d have declared themselves", n)
	}
	for i, r := range waiters {
		mustRelease(t, d, last)
		testbed.OK(t, testbed.Receive(t, done[i], r.Owner).Err)
		last = r
	}
	mustRelease(t, d, last)
}

// TestWaiterWhoseNodeHasAnotherVersion than it knows, as after a lost answer, takes its turn.
func TestWaiterWhoseNodeHasAnotherVersion(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	d := open(t, &Options{Servers: []string{server.Addr()}, TTL: 6 * time.Second})
	holder, waiter := demand("n", "holder"), demand("n", "waiter")
	mustAcquire(t, d, holder)
	done := enqueue(t, d, waiter)
	awaitDeclared(t, operator, "/interlock/n", 1)
	d.mu.Lock()
	c := d.contenders[identity{"n", "waiter"}]
	node, data := c.node, c.record(c.scale)
	d.mu.Unlock()
	data.Unconfirmed = true
	_, err := operator.Set(node, data.encode(), -1)
	testbed.OK(t, err)
	mustRelease(t, d, holder)
	testbed.OK(t, testbed.Receive(t, done, "the waiter").Err)
	got, _, err := operator.Get(node)
	if r, ok := readRecord(got); err != nil || !ok || r.Unconfirmed {
		t.Fatalf("the holder's node has %q, %v", got, err)
	}
}

// TestUnconfirmedIsNoHolder: the first contender is shown as a waiter, and cannot be broken, until it is confirmed.
// Watch reports that.
func TestUnconfirmedIsNoHolder(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	d, operator := open(t, &Options{Servers: []string{server.Addr()}}), dial(t, server.Addr())
	_, err := operator.Create("/interlock/n", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	testbed.OK(t, err)
	r := record{Owner: "w", TTL: 30_000, Unconfirmed: true}
	node, err := operator.Create("/interlock/n/_c_"+newID()+"-lock-", r.encode(), zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	testbed.OK(t, err)

	names := make(chan string, 100)
	ctx, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { _ = d.Watch(ctx, "", func(name string) { names <- name }) })
	defer watch.Wait()
	defer stop()
	testbed.Receive(t, names, "the begin of the watch")

	state, err := d.Lock(t.Context(), "n")
	if err != nil || state.Holder != nil || len(state.Waiters) != 1 || state.Waiters[0].Owner != "w" {
		t.Errorf("unconfirmed: %+v, %v", state, err)
	}
	if all, _, err := d.Locks(t.Context(), "", 10); err != nil || len(all) != 1 || all[0].Holder != nil {
		t.Errorf("unconfirmed: %+v, %v", all, err)
	}
	if _, ok, err := d.Break(t.Context(), driver.Break{Name: "n", Owner: "w", Reason: "x", By: "x"}); ok || err != nil {
		t.Errorf("broken: %v, %v", ok, err)
	}
	r.Unconfirmed = false
	_, err = operator.Set(node, r.encode(), -1)
	testbed.OK(t, err)
	if name := testbed.Receive(t, names, "the confirmation"); name != "n" {
		t.Errorf("reported %q", name)
	}
	if state, err = d.Lock(t.Context(), "n"); err != nil || state.Holder == nil || state.Holder.Owner != "w" {
		t.Errorf("confirmed: %+v, %v", state, err)
	}
}

// TestLateDeclaration: one that relies on another version of the node has no effect.
func TestLateDeclaration(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	d := open(t, &Options{Servers: []string{server.Addr()}})
	mustAcquire(t, d, demand("n", "holder"))
	enqueue(t, d, demand("n", "waiter"))
	d.mu.Lock()
	c := d.contenders[identity{"n", "waiter"}]
	node := c.node
	d.mu.Unlock()
	_, err := operator.Set(node, []byte("x"), -1)
	testbed.OK(t, err)
	testbed.OK(t, d.session.declare(t.Context(), c))
	if data, _, err := operator.Get(node); err != nil || string(data) != "x" {
		t.Fatalf("the node has %q, %v", data, err)
	}
}

// TestDeclarationWithoutAnAnswer counts: its contender confirms before it holds.
func TestDeclarationWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	path := testbed.NewProxy(t, server.Addr())
	other, d := open(t, &Options{Servers: []string{server.Addr()}}), open(t, &Options{Servers: []string{path.Addr()}})
	holder := demand("n", "holder")
	mustAcquire(t, other, holder)
	done := enqueue(t, d, demand("n", "waiter"))
	d.mu.Lock()
	c := d.contenders[identity{"n", "waiter"}]
	node := c.node
	d.mu.Unlock()
	path.DropReplies()
	ctx, cancel := context.WithCancel(t.Context())
	declared := make(chan error, 1)
	go func() { declared <- d.session.declare(ctx, c) }()
	awaitDeclared(t, operator, "/interlock/n", 1)
	cancel()
	if err := testbed.Receive(t, declared, "the end of the declaration"); interlock.Kind(err) != interlock.Uncertain {
		t.Fatalf("without an answer: %v", err)
	}
	path.Heal()
	mustRelease(t, other, holder)
	testbed.OK(t, testbed.Receive(t, done, "the waiter").Err)
	data, _, err := operator.Get(node)
	if r, ok := readRecord(data); err != nil || !ok || r.Unconfirmed {
		t.Fatalf("the holder's node has %q, %v", data, err)
	}
}

// TestUnconfirmedNeverHold: whenever contenders declare themselves, and whenever others pass them over,
// one at most holds.
func TestUnconfirmedNeverHold(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var inside atomic.Int32
	var last, grants, confirmed, passed atomic.Int64
	hold := func(d *Driver, r request) {
		g, err := d.Acquire(ctx, r.Request)
		if err != nil {
			return
		}
		if inside.Add(1) != 1 {
			t.Error("two hold it")
		}
		if former := last.Swap(int64(g.Token)); former >= int64(g.Token) {
			t.Errorf("token %d after %d", g.Token, former)
		}
		grants.Add(1)
		d.mu.Lock()
		if c := d.contenders[identity{r.Name, r.Owner}]; c != nil && c.declared { // nil if it was lost meanwhile
			confirmed.Add(1)
		}
		d.mu.Unlock()
		time.Sleep(rand.N(4 * time.Millisecond)) // a turn
		inside.Add(-1)
	}
	var all sync.WaitGroup
	for i := range 3 {
		d := open(t, &Options{Servers: []string{server.Addr()}})
		for k := range 3 {
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					r := demand("n", fmt.Sprintf("%d/%d/%d", i, k, n))
					hold(d, r)
					mustRelease(t, d, r)
				}
			})
		}
		all.Go(func() {
			for ctx.Err() == nil {
				declareAll(ctx, d)
				if passOverOne(ctx, d, operator) {
					passed.Add(1)
				}
			}
		})
	}
	for ctx.Err() == nil && (grants.Load() < 300 || confirmed.Load() < 50 || passed.Load() < 50) {
		time.Sleep(10 * time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Errorf("too few: %d grants, %d of them confirmed, %d passed over", grants.Load(), confirmed.Load(), passed.Load())
	}
	cancel()
	all.Wait()
}

// declareAll makes the waiters of a driver declare themselves.
func declareAll(ctx context.Context, d *Driver) {
	d.mu.Lock()
	s := d.session
	var waiters []*contender
	for _, c := range d.contenders {
		if c.state == waiting {
			waiters = append(waiters, c)
		}
	}
	d.mu.Unlock()
	for _, c := range waiters {
		_ = s.declare(ctx, c)
	}
}

// passOverOne passes over a random contender, a moment after its node was read.
func passOverOne(ctx context.Context, d *Driver, operator *zk.Conn) bool {
	list, _, _ := operator.Children("/interlock/n")
	q := queueOf(list)
	if len(q) == 0 {
		return false
	}
	n := q[rand.N(min(len(q), 3))]
	data, stat, err := operator.Get("/interlock/n/" + n.name)
	if err != nil {
		return false
	}
	time.Sleep(rand.N(4 * time.Millisecond))
	c := &contender{identity: identity{name: "n"}, lock: "/interlock/n"}
	return d.session.passOver(ctx, c, n, &found{data: data, stat: stat})
}
