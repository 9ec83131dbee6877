package etcd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func order(name, owner string) driver.Break {
	return driver.Break{Name: name, Owner: owner, Reason: "a test", By: "an operator"}
}

func mustBreak(t *testing.T, d *Driver, b driver.Break) driver.BreakRecord {
	t.Helper()
	record, ok, err := d.Break(bounded(t), b)
	if err != nil || !ok {
		t.Fatalf("break %q of %q: %v, %v", b.Name, b.Owner, ok, err)
	}
	return record
}

// TestBreakOfAForeignHolder: as the Inspector shows one of the Go package
// concurrency, also before one of ours and before another foreign one.
func TestBreakOfAForeignHolder(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	d := open(t, dial(t, server.Addr()), &Options{Prefix: "locks/"})
	var foreign [2]*concurrency.Mutex
	for i := range foreign {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
		testbed.OK(t, err)
		defer session.Close()
		foreign[i] = concurrency.NewMutex(session, "locks/a%2Fb")
	}
	testbed.OK(t, foreign[0].Lock(bounded(t)))
	second := make(chan error, 1)
	go func() { second <- foreign[1].Lock(bounded(t)) }()
	testbed.Eventually(t, "the other waits", patience, func() bool {
		return len(keys(t, client, "locks/a%2Fb/")) == 2
	})
	ours := ask("a/b", "ours")
	done := queue(t, d, ours)
	state, err := d.Lock(bounded(t), "a/b")
	if err != nil || state.Holder == nil || !state.Holder.Foreign || state.Holder.Token != 0 || state.Holder.Expires <= 0 {
		t.Fatalf("%+v, %v", state, err)
	}
	if len(state.Waiters) != 2 || !state.Waiters[0].Foreign || state.Waiters[1].Owner != "ours" || state.Waiters[0].Owner == state.Holder.Owner {
		t.Fatalf("waiters %+v", state.Waiters)
	}
	record := mustBreak(t, d, order("a/b", state.Holder.Owner))
	if record.Token != 0 {
		t.Fatalf("a foreign holder had the token %d", record.Token)
	}
	testbed.OK(t, testbed.Receive(t, second, "the next foreign one"))
	if _, ok, err := d.Break(bounded(t), order("a/b", state.Holder.Owner)); ok || err != nil {
		t.Fatalf("a second break of the same: %v, %v", ok, err)
	}
	mustBreak(t, d, order("a/b", state.Waiters[0].Owner))
	if o := testbed.Receive(t, done, "ours"); o.Err != nil {
		t.Fatal(o.Err)
	}
	testbed.OK(t, foreign[0].Unlock(bounded(t)))
	if all, err := d.Breaks(bounded(t), "a/b", 10); err != nil || len(all) != 2 || all[1] != record {
		t.Fatalf("%+v, %v", all, err)
	}
}

// TestBreakLeavesDataAlone: a key without a lease belongs to no lock.
func TestBreakLeavesDataAlone(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d := open(t, client, nil)
	mustPut(t, client, "n/data", "precious")
	state, err := d.Lock(bounded(t), "n")
	if err != nil || state.Holder == nil {
		t.Fatalf("%+v, %v", state, err)
	}
	_, ok, err := d.Break(bounded(t), order("n", state.Holder.Owner))
	if ok || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "n/data") {
		t.Fatalf("%v, %v", ok, err)
	}
	if left := keys(t, client, "n/"); len(left) != 1 {
		t.Fatalf("left are %q", left)
	}
}

// TestBreakWhileTheHolderChanges: a holder that was granted between the read and the deletion keeps
// the lock.
func TestBreakWhileTheHolderChanges(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d := open(t, dial(t, server.Addr()), nil)
	former, next := ask("n", "former"), ask("n", "next")
	mustAcquire(t, d, former)
	var looked atOnce
	client := dial(t, server.Addr(), looked.on)
	operator := open(t, client, nil)
	looked.second(func() {
		mustRelease(t, d, former)
		mustAcquire(t, d, next)
	})
	if record, ok, err := operator.Break(bounded(t), order("n", "former")); ok || err != nil {
		t.Fatalf("%+v, %v, %v", record, ok, err)
	}
	if all, err := d.Breaks(bounded(t), "", 10); err != nil || len(all) > 0 {
		t.Fatalf("on record are %+v, %v", all, err)
	}
	if left := keys(t, client, "n/"); len(left) != 1 {
		t.Fatalf("left are %q", left)
	}
}

// TestBreaksAreBounded: the oldest records are removed when there are too many, and
// none of other names.
func TestBreaksAreBounded(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d := open(t, client, &Options{Prefix: "p/"})
	for i := range maxBreaks + 3 {
		mustPut(t, client, d.layout.broken(fmt.Sprint("old ", i), 1), fmt.Sprintf(`{"owner": "o", "reason": "%d", "by": "b"}`, i))
	}
	r := ask("n", "me")
	mustAcquire(t, d, r)
	mustBreak(t, d, order("n", "me"))
	all, err := d.Breaks(bounded(t), "", maxBreaks+10)
	if err != nil || len(all) != maxBreaks {
		t.Fatalf("%d are on record, %v; want %d", len(all), err, maxBreaks)
	}
	if all[0].Name != "n" || all[1].Name != fmt.Sprint("old ", maxBreaks+2) || all[maxBreaks-1].Name != "old 4" {
		t.Fatalf("kept are %q, %q … %q", all[0].Name, all[1].Name, all[maxBreaks-1].Name)
	}
	mustRelease(t, d, r)
	if state, _, err := d.Locks(bounded(t), "", 10); err != nil || len(state) > 0 {
		t.Fatalf("records are taken for locks: %+v, %v", state, err)
	}
}

// TestBreaksOfNamesThatBeginAlike: each name lists its own.
func TestBreaksOfNamesThatBeginAlike(t *testing.T) {
	t.Parallel()
	d := open(t, dial(t, serverFor(t).Addr()), nil)
	for _, name := range []string{"a", "a:0000000000000000001", "a:b"} {
		mustAcquire(t, d, ask(name, "me"))
		mustBreak(t, d, order(name, "me"))
	}
	for _, name := range []string{"a", "a:0000000000000000001", "a:b"} {
		if all, err := d.Breaks(bounded(t), name, 10); err != nil || len(all) != 1 || all[0].Name != name {
			t.Fatalf("of %q: %+v, %v", name, all, err)
		}
	}
}

func TestBreakCostsTwoRequests(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	var count counter
	d := open(t, dial(t, server.Addr(), count.on), nil)
	mustAcquire(t, open(t, dial(t, server.Addr()), nil), ask("n", "holder"))
	before := count.n.Load()
	mustBreak(t, d, order("n", "holder"))
	if got := count.n.Load() - before; got != 2 {
		t.Fatalf("%d requests for a break", got)
	}
}

// TestBreakOfAnUnreadableRecord is an error, and not skipped.
func TestBreakOfAnUnreadableRecord(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d := open(t, client, nil)
	mustPut(t, client, "interlock.break:n:0000000000000000001", "nonsense")
	if _, err := d.Breaks(bounded(t), "n", 1); !errors.Is(err, errNoRecord) || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("got %v", err)
	}
	_, err := d.client.Delete(bounded(t), "interlock.break:", clientv3.WithPrefix())
	testbed.OK(t, err)
}
