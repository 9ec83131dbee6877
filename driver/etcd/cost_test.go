package etcd

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestUncontendedCostsTwoRequests counts every request of the client over many
// acquires and releases in a row.
func TestUncontendedCostsTwoRequests(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), &Options{TTL: time.Second})
	rounds := 0
	before := count.n.Load()
	// over several heartbeats and renewals, which must add no requests
	for end := time.Now().Add(4 * d.pace.heartbeat); rounds < 200 || time.Now().Before(end); rounds++ {
		r := ask("a/b", fmt.Sprint(rounds))
		mustAcquire(t, d, r)
		mustRelease(t, d, r)
	}
	if got := count.n.Load() - before; got != int64(2*rounds) {
		t.Fatalf("%d requests for %d acquires and releases", got, rounds)
	}
}

// TestUncontendedAllocations compares a pair with the same two requests by the
// client alone.
func TestUncontendedAllocations(t *testing.T) {
	if testbed.Race {
		t.Skip("the race detector empties pools, which changes the count")
	}
	const most = 8 // 7 more than the client when this was written, 259 and 252
	client := dial(t, serverFor(t).Addr())
	d := open(t, client, &Options{Prefix: "locks/"})
	ctx := bounded(t)
	pair := testing.AllocsPerRun(200, func() {
		_, err := d.Acquire(ctx, driver.Request{Name: "n", Owner: "me"})
		testbed.OK(t, err)
		testbed.OK(t, d.Release(ctx, "n", "me"))
	})
	absent, read := clientv3.Compare(clientv3.CreateRevision("bare"), "=", 0), clientv3.OpGet("bare")
	bare := testing.AllocsPerRun(200, func() {
		_, err := client.Txn(ctx).If(absent).Then(clientv3.OpPut("bare", ""), read).Else(read).Commit()
		testbed.OK(t, err)
		_, err = client.Delete(ctx, "bare")
		testbed.OK(t, err)
	})
	t.Logf("%v allocations a pair, %v of the bare client", pair, bare)
	if pair-bare > most {
		t.Fatalf("%v allocations a pair, %v more than the client's own", pair, pair-bare)
	}
}

// TestOwnValueIsNotDecoded: only a value that a contender sent counts as its own.
func TestOwnValueIsNotDecoded(t *testing.T) {
	t.Parallel()
	c := &contender{identity: identity{"n", "me"}, line: "n/", key: "n/me"}
	q := newQueues(0, func() {})
	q.join(c)
	for _, test := range []struct {
		sent  sent
		value string
		want  int64
	}{
		{sent{}, "", unknownBase}, // a foreign value from before the first request
		{sent{value: []byte("own"), base: 7}, "own", 7},
		{sent{value: []byte("own"), base: 7}, "foreign", unknownBase},
		{sent{value: []byte("own"), base: 7}, `{"owner":"me","base":5}`, 5}, // an earlier request
	} {
		c.sent = test.sent
		if p := q.placeOf(&mvccpb.KeyValue{Key: []byte("n/me"), Value: []byte(test.value)}); p.base != test.want {
			t.Errorf("sent %+v, stored %q: base %d, want %d", test.sent, test.value, p.base, test.want)
		}
	}
}

// TestRefusalCostsOneRequest, and the releases after it, also of an unknown owner,
// cost none.
func TestRefusalCostsOneRequest(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	var count counter
	d := open(t, dial(t, server.Addr(), count.on), nil)
	mustAcquire(t, open(t, dial(t, server.Addr()), nil), ask("n", "holder"))
	r := ask("n", "late")
	r.NoWait = true
	before := count.n.Load()
	if _, err := d.Acquire(bounded(t), r.Request); err == nil {
		t.Fatal("granted twice")
	}
	mustRelease(t, d, r)
	mustRelease(t, d, ask("n", "nobody"))
	if got := count.n.Load() - before; got != 1 {
		t.Fatalf("%d requests for a refusal", got)
	}
}

// TestWaitersCostNoRequestsAndNoGoroutines: the only goroutines are the callers'
// own.
func TestWaitersCostNoRequestsAndNoGoroutines(t *testing.T) {
	server := serverFor(t)
	var count counter
	d := open(t, dial(t, server.Addr(), count.on), &Options{TTL: suiteTTL}) // too short for a waitLease
	holder := ask("hot", "holder")
	mustAcquire(t, d, holder)
	watching(t, d, deletions)
	const waiters = 50
	before := count.n.Load()
	goroutines := runtime.NumGoroutine()
	var all []request
	var done []<-chan outcome
	for i := range waiters {
		r := ask("hot", fmt.Sprint("waiter ", i))
		all, done = append(all, r), append(done, queue(t, d, r))
	}
	if more := runtime.NumGoroutine() - goroutines; more > waiters+2 {
		t.Errorf("%d more goroutines for %d waiters, which are one each", more, waiters)
	}
	mustRelease(t, d, holder)
	for i, r := range all {
		if o := testbed.Receive(t, done[i], r.Owner); o.Err != nil {
			t.Fatal(o.Err)
		}
		mustRelease(t, d, r)
	}
	// the first of them must find out that it is not alone
	if got := count.n.Load() - before; got != 2*waiters+2 {
		t.Fatalf("%d requests for %d contended acquires and %d releases", got, waiters, waiters+1)
	}
}
