package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestCrashedWaiter keeps its place for much less than a TTL.
func TestCrashedWaiter(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	path := testbed.NewProxy(t, server.Addr())
	d, holder := open(t, dial(t, server.Addr()), nil), ask("n", "holder")
	mustAcquire(t, d, holder)
	queue(t, open(t, dial(t, path.Addr()), nil), ask("n", "dead"))
	done := queue(t, d, ask("n", "next"))
	path.Cut()
	mustRelease(t, d, holder)
	began := time.Now()
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
	// 5 s, and half a second until etcd notices
	if took := time.Since(began); took > defaultTTL/2 {
		t.Fatalf("a dead waiter kept its place for %v", took)
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

// TestMinLeaseEndsWithTheContext: the move of a claim takes no longer than its caller waits.
func TestMinLeaseEndsWithTheContext(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	moving := make(chan struct{}, 100)
	d := open(t, dial(t, server.Addr(), func(config *clientv3.Config) {
		config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if r, ok := req.(*pb.TxnRequest); ok && len(r.Success) == 1 && r.Success[0].GetRequestPut().GetIgnoreValue() {
					moving <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}
				return call(ctx, method, req, reply, cc, opts...)
			}))
	}), nil)
	other, holder, waiter := open(t, dial(t, server.Addr()), nil), ask("n", "holder"), ask("n", "waiter")
	waiter.MinLease = defaultTTL / 2
	mustAcquire(t, other, holder)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, waiter.Request)
		done <- err
	}()
	testbed.Receive(t, waiter.Waiting, "a place")
	mustRelease(t, other, holder)
	testbed.Receive(t, moving, "the move")
	enough := errors.New("enough")
	cancel(enough)
	if err := testbed.Receive(t, done, "the end of Acquire"); !errors.Is(err, enough) {
		t.Errorf("it ended with %v", err)
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
	c.win(effect{place: place{key: c.key, created: 5, base: 1, owner: "me", lease: w.id}})
	if left := (lease{c}).Remaining(); left <= 0 || left > time.Minute {
		t.Fatalf("it has %v left", left)
	}
	s.forgetWaiting(w)
	if left := (lease{c}).Remaining(); left > 0 || c.state != dropped || !s.queues.isDeleting(c.key) {
		t.Fatalf("it has %v left in state %d", left, c.state)
	}
	c.state = waiting
	c.win(effect{place: place{key: c.key, created: 5, base: 1, owner: "me", lease: w.id}})
	if c.state != dropped {
		t.Fatal("a lease that is not renewed any more grants")
	}
}

// TestEndOfAWaitLeaseIsNoLoss: holders check the time that remains.
func TestEndOfAWaitLeaseIsNoLoss(t *testing.T) {
	t.Parallel()
	d, s := machine(t)
	s.term = boottime.NewLease(boottime.Now(), time.Hour)
	for left, want := range map[time.Duration]int{time.Minute: 1, -time.Minute: 0} {
		losses := 0
		c, err := d.register(s, driver.Request{Name: "n", Owner: fmt.Sprint(left), Events: driver.Events{Lost: func(error) { losses++ }}})
		testbed.OK(t, err)
		d.mu.Lock()
		s.wait = &waitLease{id: 8, term: boottime.NewLease(boottime.Now().Add(left-time.Hour), time.Hour)}
		c.win(effect{place: place{key: c.key, created: 5, base: 1, owner: c.owner, lease: 8}})
		c.grant()
		d.mu.Unlock()
		s.waitingGone(8)
		if losses != want || c.state != dropped {
			t.Errorf("with %v left: %d losses in state %d", left, losses, c.state)
		}
	}
}
