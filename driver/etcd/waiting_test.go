package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

// contend is a process that acquires a lock, and keeps it until it is killed. Its
// arguments are the server, the name, its owner and the TTL.
func contend(ctx context.Context, _ *crash.Points, args []string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: args[:1], Context: ctx})
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	d, err := Open(ctx, client, &Options{TTL: ttl})
	if err != nil {
		return err
	}
	_, err = d.Acquire(ctx, driver.Request{Name: args[1], Owner: args[2], Events: driver.Events{
		Waiting: func(driver.Place) { fmt.Println("waits") }}})
	if err != nil {
		return err
	}
	fmt.Println("holds")
	select {}
}

// contenderProcess starts contend, and returns when it waits or holds.
func contenderProcess(t *testing.T, addr, owner string, ttl time.Duration, state string) *testbed.Process {
	t.Helper()
	p := crash.Start(t, "contender", 0, addr, "n", owner, ttl.String())
	if line := testbed.Receive(t, p.Stdout(), "word of "+owner); line != state {
		t.Fatalf("%s %s", owner, line)
	}
	return p
}

// TestKilledWaiters keep their places for much less than a TTL.
func TestKilledWaiters(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	server := serverFor(t)
	d := open(t, dial(t, server.Addr()), &Options{TTL: ttl})
	holder, next := ask("n", "holder"), ask("n", "next")
	mustAcquire(t, d, holder)
	dead := contenderProcess(t, server.Addr(), "dead", ttl, "waits")
	done := queue(t, open(t, dial(t, server.Addr()), &Options{TTL: ttl}), next)
	dead.Kill()
	mustRelease(t, d, holder)
	began := time.Now()
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
	// 5 s, and half a second until etcd notices
	if took := time.Since(began); took > ttl/2 {
		t.Fatalf("a dead waiter kept its place for %v", took)
	}
}

// TestKilledHolderAndWaiters: the waiter after them is served at most a TTL and a second
// later. The test also measures how long a lease with that TTL takes to expire, granted
// when they were killed.
func TestKilledHolderAndWaiters(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := serverFor(t)
	operator := dial(t, server.Addr())
	processes := []*testbed.Process{contenderProcess(t, server.Addr(), "holder", ttl, "holds")}
	for _, owner := range []string{"second", "third"} {
		processes = append(processes, contenderProcess(t, server.Addr(), owner, ttl, "waits"))
	}
	done := queue(t, open(t, dial(t, server.Addr()), &Options{TTL: ttl}), ask("n", "next"))
	for _, p := range processes {
		p.Kill()
	}
	control, err := operator.Grant(bounded(t), int64(ttl.Seconds()))
	testbed.OK(t, err)
	watched := operator.Watch(bounded(t), "control", clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	testbed.Receive(t, watched, "the watch")
	mustPut(t, operator, "control", "", clientv3.WithLease(control.ID))
	expired := make(chan time.Time, 1)
	go func() {
		<-watched
		expired <- time.Now()
	}()
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
	granted := time.Now()
	if late := granted.Sub(testbed.Receive(t, expired, "the end of the lease")); late > time.Second {
		t.Fatalf("served %v after a lease of the TTL had expired", late)
	}
}

// TestWaiterHoldsUnderTheSession: a kept claim moves there, with its place and token.
func TestWaiterHoldsUnderTheSession(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	d, other := open(t, dial(t, server.Addr()), nil), open(t, dial(t, server.Addr()), nil)
	holder, waiter := ask("n", "holder"), ask("n", "waiter")
	mustAcquire(t, other, holder)
	done := queue(t, d, waiter)
	before, err := operator.Get(bounded(t), "n/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	if err != nil || len(before.Kvs) != 2 || clientv3.LeaseID(before.Kvs[0].Lease) == d.session.id {
		t.Fatalf("it waits as %v, %v", before, err)
	}
	mustRelease(t, other, holder)
	o := testbed.Receive(t, done, "the grant")
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	testbed.Eventually(t, "the claim is moved", patience, func() bool {
		at, ok := d.Contender("n", "waiter")
		return ok && at.Lease == d.session.id
	})
	after, err := operator.Get(bounded(t), "n/", clientv3.WithPrefix())
	if err != nil || len(after.Kvs) != 1 {
		t.Fatal(after, err)
	}
	kv, old := after.Kvs[0], before.Kvs[0]
	if clientv3.LeaseID(kv.Lease) != d.session.id || kv.CreateRevision != old.CreateRevision || string(kv.Value) != string(old.Value) {
		t.Fatalf("%v became %v", old, kv)
	}
	if left := o.Lease.Remaining(); left < defaultTTL/2 {
		t.Fatalf("it has %v left", left)
	}
	if again := mustAcquire(t, d, waiter); again.Token != o.Token {
		t.Fatalf("token %d became %d", o.Token, again.Token)
	}
	mustRelease(t, d, waiter)
}

// TestMinLeaseOfAWaiter: a claim that needs a longer lease is moved before its grant.
func TestMinLeaseOfAWaiter(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d, other := open(t, dial(t, server.Addr()), nil), open(t, dial(t, server.Addr()), nil)
	holder, waiter := ask("n", "holder"), ask("n", "waiter")
	waiter.MinLease = defaultTTL / 2
	mustAcquire(t, other, holder)
	done := queue(t, d, waiter)
	mustRelease(t, other, holder)
	o := testbed.Receive(t, done, "the grant")
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	if left := o.Lease.Remaining(); left <= waiter.MinLease {
		t.Fatalf("it has %v left", left)
	}
}

// TestWaitLeaseGone: waiters lose their places, and holders that were not moved lose
// their claims. A repeated Acquire waits under another lease.
func TestWaitLeaseGone(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	d, other := open(t, dial(t, server.Addr()), nil), open(t, dial(t, server.Addr()), nil)
	holder, waiter := ask("n", "holder"), ask("n", "waiter")
	mustAcquire(t, other, holder)
	done := queue(t, d, waiter)
	w := d.session.waitingNow()
	_, err := operator.Revoke(bounded(t), w.id)
	testbed.OK(t, err)
	if o := testbed.Receive(t, done, "word to the waiter"); interlock.Kind(o.Err) != interlock.Retryable || !errors.Is(o.Err, interlock.ErrLost) {
		t.Fatal(o.Err)
	}
	done = queue(t, d, waiter)
	if now := d.session.waitingNow(); now == nil || now.id == w.id {
		t.Fatalf("it waits under %+v again", now)
	}
	mustRelease(t, other, holder)
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
}

// TestRemainingUnderAWaitLease: a claim lasts as long as the lease under which it is held,
// and ends once that is no longer renewed.
func TestRemainingUnderAWaitLease(t *testing.T) {
	t.Parallel()
	d, s := machine(t)
	s.term = boottime.NewLease(boottime.Now(), time.Hour)
	c, err := d.register(s, driver.Request{Name: "n", Owner: "me"})
	testbed.OK(t, err)
	w := &waitLease{id: 8, ttl: time.Minute, term: boottime.NewLease(boottime.Now(), time.Minute)}
	s.wait = w
	d.mu.Lock()
	defer d.mu.Unlock()
	c.win(effect{key: c.key, created: 5, base: 1, owner: "me", lease: w.id})
	if left := (lease{c}).Remaining(); left <= 0 || left > time.Minute {
		t.Fatalf("it has %v left", left)
	}
	s.forgetWaiting(w)
	if left := (lease{c}).Remaining(); left > 0 || c.state != dropped || !s.queues.isDeleting(c.key) {
		t.Fatalf("it has %v left in state %d", left, c.state)
	}
	c.state = waiting
	c.win(effect{key: c.key, created: 5, base: 1, owner: "me", lease: w.id})
	if c.state != dropped {
		t.Fatal("a lease that is not renewed any more grants")
	}
}
