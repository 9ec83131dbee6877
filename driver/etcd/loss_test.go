package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestLossIsToldWithoutTheWatch: the bound of Guarantees.Blind holds when the
// watch is dead and everything else works.
func TestLossIsToldWithoutTheWatch(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	deaf := deafen(client)
	d := open(t, client, nil)
	r := ask("n", "holder")
	g := mustAcquire(t, d, r)
	deaf.deaf.Store(true)
	began := time.Now()
	mustDelete(t, dial(t, server.Addr()), "n/", clientv3.WithPrefix())
	if cause := testbed.Receive(t, r.Lost, "word of the loss"); !errors.Is(cause, interlock.ErrLost) {
		t.Fatalf("cause %v", cause)
	}
	took := time.Since(began)
	t.Logf("reported after %v, guaranteed are %v", took, d.Guarantees().Blind)
	if took > d.Guarantees().Blind {
		t.Fatalf("reported after %v, guaranteed are %v", took, d.Guarantees().Blind)
	}
	if left := g.Lease.Remaining(); left > 0 {
		t.Fatalf("a lost claim has %v left", left)
	}
}

// TestWatchIsOpenedAnew after it fell silent, and then hand-overs are pushed again.
func TestWatchIsOpenedAnew(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	deaf := deafen(client)
	d := open(t, client, &Options{TTL: 2 * time.Second})
	holder, next := ask("n", "holder"), ask("n", "next")
	mustAcquire(t, d, holder)
	watching(t, d, deletions)
	deaf.deaf.Store(true)
	opened := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.session.watch.opened
	}
	testbed.Eventually(t, "the silence is noticed", patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !d.session.watch.up
	})
	deaf.deaf.Store(false)
	testbed.Eventually(t, "the watch is reopened", patience, func() bool { return opened() > 1 })
	done := queue(t, d, next)
	mustRelease(t, d, holder)
	testbed.Receive(t, done, "the grant")
}

// TestCompactionDuringAnOutage: the watch cannot be resumed, so that changes must
// be read: a loss, and a grant.
func TestCompactionDuringAnOutage(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	proxy := testbed.NewProxy(t, server.Addr())
	d, operator := open(t, dial(t, proxy.Addr()), nil), dial(t, server.Addr())
	held, awaited := ask("held", "me"), ask("awaited", "me")
	mustAcquire(t, d, held)
	mustPut(t, operator, "awaited/foreign", "")
	done := queue(t, d, awaited)
	watching(t, d, deletions)

	proxy.Cut()
	mustDelete(t, operator, "held/", clientv3.WithPrefix())
	mustDelete(t, operator, "awaited/foreign")
	rev := mustPut(t, operator, "x", "y")
	_, err := operator.Compact(bounded(t), rev)
	testbed.OK(t, err)
	proxy.Heal()
	if cause := testbed.Receive(t, held.Lost, "word of the loss"); !errors.Is(cause, interlock.ErrLost) {
		t.Fatalf("cause %v", cause)
	}
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil || !o.Token.Valid() {
		t.Fatal(o)
	}
}

// TestRevokedLeaseEndsTheSession: every claim is lost, every waiter must acquire
// again, and the next session has a higher token.
func TestRevokedLeaseEndsTheSession(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	d := open(t, dial(t, server.Addr()), nil)
	held, awaited := ask("held", "me"), ask("awaited", "me")
	before := mustAcquire(t, d, held)
	mustPut(t, operator, "awaited/foreign", "")
	done := queue(t, d, awaited)
	lease := d.session.id
	_, err := operator.Revoke(bounded(t), lease)
	testbed.OK(t, err)
	if cause := testbed.Receive(t, held.Lost, "word of the loss"); !errors.Is(cause, interlock.ErrLost) && !errors.Is(cause, interlock.ErrSessionEnded) {
		t.Fatalf("cause %v", cause)
	}
	o := testbed.Receive(t, done, "word to the waiter")
	if interlock.Kind(o.Err) != interlock.Retryable {
		t.Fatalf("a waiter without a place: %v", o.Err)
	}
	testbed.Eventually(t, "the session is known to be over", patience, func() bool { return before.Lease.Remaining() <= 0 && replaced(d, lease) })
	mustRelease(t, d, held)
	after := mustAcquire(t, d, held)
	if after.Token <= before.Token {
		t.Fatalf("token %d after %d", after.Token, before.Token)
	}
	if at, ok := d.Contender("held", "me"); !ok || at.Lease == lease {
		t.Fatalf("it is at %+v, under the ended lease", at)
	}
	if len(held.Lost) > 0 {
		t.Fatalf("reported again: %v", <-held.Lost)
	}
}

// replaced reports whether lease is no longer the session's.
func replaced(d *Driver, lease clientv3.LeaseID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session == nil || d.session.id != lease
}

// TestAnotherStoreIsNoticed by its revisions, at the first request that reaches it:
// all state of the old one is dropped.
func TestAnotherStoreIsNoticed(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t)
	client := dial(t, server.Addr())
	d := open(t, client, nil)
	for i := range 20 {
		r := ask("n", fmt.Sprint(i))
		mustAcquire(t, d, r)
		mustRelease(t, d, r)
	}
	last := ask("n", "last")
	before := mustAcquire(t, d, last)
	server.Wipe()
	operator := dial(t, server.Addr())
	mustPut(t, operator, "interlock.base", "1") // and a base that is far too low
	next := ask("n", "next")
	var after interlock.Token
	testbed.Eventually(t, "a grant from the new store", patience, func() bool {
		g, err := d.Acquire(bounded(t), next.Request)
		if err != nil && interlock.Kind(err) != interlock.Uncertain && !errors.Is(err, interlock.ErrSessionEnded) {
			t.Fatalf("the new store answered, and the cause is: %v", err)
		}
		after = g.Token
		return err == nil
	})
	if after <= before.Token {
		t.Fatalf("token %d after %d", after, before.Token)
	}
	if left := before.Lease.Remaining(); left > 0 {
		t.Fatalf("a claim of the lost store has %v left", left)
	}
	testbed.Receive(t, last.Lost, "word of the loss")
}

// TestGhostIsRemoved: an abandoned request is executed late, and is seen by the watch or by a
// read. Its key would stay in line for as long as the session lives.
func TestGhostIsRemoved(t *testing.T) {
	t.Parallel()
	for how, deaf := range map[string]bool{"with the watch": false, "without an event": true} {
		t.Run(how, func(t *testing.T) {
			server := serverFor(t)
			client, operator := dial(t, server.Addr()), dial(t, server.Addr())
			watch := deafen(client)
			d := open(t, client, nil)
			mustAcquire(t, d, ask("other", "me"))
			watch.deaf.Store(deaf)
			suspect(d)
			mustPut(t, operator, slot("n/", d.session.id, 0), "late", clientv3.WithLease(d.session.id))
			testbed.Eventually(t, "the ghost is gone", patience, func() bool { return len(keys(t, operator, "n/")) == 0 })
			if len(keys(t, operator, "other/")) != 1 {
				t.Fatal("the claim went with it")
			}
			mustAcquire(t, d, ask("n", "next"))
		})
	}
}

// TestLateEntryOfARefusedRequest: a request whose outcome is unknown was repeated and refused, and is
// executed late. Nobody wants its key any more. It blocks the name until the next search for such
// keys, at most maxPause heartbeats later.
func TestLateEntryOfARefusedRequest(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	var withhold atomic.Bool
	tired, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	d := open(t, dial(t, server.Addr(), func(config *clientv3.Config) {
		intercept(config, func(ctx context.Context, method string, call func() error) error {
			if withhold.Load() {
				if method == pb.KV_Txn_FullMethodName {
					giveUp()
				}
				<-ctx.Done()
				return ctx.Err()
			}
			return call()
		})
	}), &Options{TTL: 2 * time.Second})
	other, operator := open(t, dial(t, server.Addr()), nil), dial(t, server.Addr())
	holder, r := ask("n", "holder"), ask("n", "me")
	r.NoWait = true
	mustAcquire(t, other, holder)
	withhold.Store(true)
	if _, err := d.Acquire(tired, r.Request); interlock.Kind(err) != interlock.Uncertain {
		t.Fatal(err)
	}
	withhold.Store(false)
	if _, err := d.Acquire(bounded(t), r.Request); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	mustRelease(t, other, holder)
	d.mu.Lock()
	s := d.session
	s.strays = strays{pause: maxPause, left: maxPause} // the search is as far away as it can be
	d.mu.Unlock()
	mustPut(t, operator, slot("n/", s.id, 0), string(record{Owner: r.Owner, Base: 1}.encode()), clientv3.WithLease(s.id))
	began := time.Now()
	mustAcquire(t, other, ask("n", "next"))
	const requests = 2 // the search, and the deletion
	if took, bound := time.Since(began), (maxPause+1)*d.pace.heartbeat+requests*d.pace.request; took > bound {
		t.Fatalf("it blocked the name for %v, the bound is %v", took, bound)
	}
}

// suspect records that a request was abandoned.
func suspect(d *Driver) { _ = d.session.unknown(errors.New("no answer")) }

// TestRewrittenKeyGivesNoToken: a value without a base has no token, so the owner takes a new
// place.
func TestRewrittenKeyGivesNoToken(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	proxy := testbed.NewProxy(t, server.Addr())
	d, operator := open(t, dial(t, proxy.Addr()), nil), dial(t, server.Addr())
	lease := d.session.id
	mustPut(t, operator, slot("n/", lease, 0), "", clientv3.WithLease(lease))
	r := ask("n", "me")
	var g outcome
	testbed.Eventually(t, "a grant with a token", patience, func() bool {
		g.Grant, g.Err = d.Acquire(bounded(t), r.Request)
		return g.Err == nil
	})
	if g.Token.Counter() < interlock.CounterAt(time.Now().Add(-time.Minute)) {
		t.Fatalf("token %d", g.Token)
	}
}

// TestCloseLeavesNothing: no lease if nothing was held; otherwise the waiters are
// removed and the claim expires.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	idle := open(t, dial(t, server.Addr()), nil)
	id := idle.session.id
	testbed.OK(t, idle.Close(t.Context()))
	if reply, err := operator.TimeToLive(t.Context(), id); err != nil || reply.TTL > 0 {
		t.Fatalf("the lease lives: %v, %v", reply, err)
	}
	busy := open(t, dial(t, server.Addr()), nil)
	mustAcquire(t, busy, ask("held", "me"))
	mustPut(t, operator, "awaited/foreign", "")
	var waiters []<-chan outcome
	for i := range batch + 1 { // more than one request deletes
		waiters = append(waiters, queue(t, busy, ask("awaited", fmt.Sprint(i))))
	}
	testbed.OK(t, busy.Close(t.Context()))
	for _, done := range waiters {
		if o := testbed.Receive(t, done, "a waiter"); !errors.Is(o.Err, interlock.ErrClosed) {
			t.Fatal(o.Err)
		}
	}
	if left := strings.Join(keys(t, operator, "awaited/"), " "); left != "awaited/foreign" {
		t.Fatalf("in line: %s", left)
	}
	if len(keys(t, operator, "held/")) != 1 {
		t.Fatal("the claim did not stay")
	}
}

// TestNoWaitingAfterAnError: the place stays, and changes between two calls of
// Acquire. The second call reports the change.
func TestNoWaitingAfterAnError(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d, operator := open(t, dial(t, server.Addr()), nil), dial(t, server.Addr())
	mustPut(t, operator, "n/first", "")
	mustPut(t, operator, "n/second", "")
	gone := errors.New("gone")
	r := ask("n", "me")
	ctx, cancel := context.WithCancelCause(bounded(t))
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, r.Request)
		done <- err
	}()
	if p := testbed.Receive(t, r.Waiting, "word of waiting"); p.Ahead != 1 {
		t.Fatalf("received %+v", p)
	}
	cancel(gone)
	if err := testbed.Receive(t, done, "the end"); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	mustDelete(t, operator, "n/first")
	passed(t, d, operator)
	if len(r.Waiting) > 0 {
		t.Fatalf("received %+v after Acquire returned", <-r.Waiting)
	}
	again := begin(t, d, r)
	place := func() int { return testbed.Receive(t, r.Waiting, "the event Waiting of the repeated call").Ahead }
	for place() != 0 { // the first may be from before a read that is under way
	}
	mustDelete(t, operator, "n/second")
	if o := testbed.Receive(t, again, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
}

// TestNoLossAfterAnError: a holder whose repeated Acquire failed receives no more
// events.
func TestNoLossAfterAnError(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d, operator := open(t, dial(t, server.Addr()), nil), dial(t, server.Addr())
	r, witness := ask("n", "me"), ask("m", "witness")
	mustAcquire(t, d, r)
	mustAcquire(t, d, witness)
	watching(t, d, deletions)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Acquire(ctx, r.Request); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	mustDelete(t, operator, slot("n/", d.session.id, 0))
	mustDelete(t, operator, slot("m/", d.session.id, 0))
	testbed.Receive(t, witness.Lost, "word of the later loss")
	if len(r.Lost) > 0 {
		t.Fatalf("received %v after Acquire returned an error", <-r.Lost)
	}
}

// TestNoWaitingAfterRelease, also while its outcome is unknown.
func TestNoWaitingAfterRelease(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	proxy := testbed.NewProxy(t, server.Addr())
	d, operator := open(t, dial(t, proxy.Addr()), nil), dial(t, server.Addr())
	mustPut(t, operator, "n/first", "")
	mustPut(t, operator, "n/second", "")
	r := ask("n", "me")
	done := queue(t, d, r)
	proxy.Cut()
	if err := d.Release(bounded(t), r.Name, r.Owner); err == nil {
		t.Fatal("an unanswered release")
	}
	if o := testbed.Receive(t, done, "the end"); o.Err == nil {
		t.Fatal("granted")
	}
	mustDelete(t, operator, "n/first")
	proxy.Heal()
	testbed.Eventually(t, "its key is gone", patience, func() bool { return len(keys(t, operator, "n/")) == 1 })
	passed(t, d, operator)
	if len(r.Waiting) > 0 {
		t.Fatalf("received %+v after Release", <-r.Waiting)
	}
}
