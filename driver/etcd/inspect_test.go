package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestLocksPages: more keys than one request reads, in the byte order of names
// although keys are escaped, without keys that belong to no lock.
func TestLocksPages(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	d := open(t, dial(t, server.Addr()), nil)
	lease, err := client.Grant(t.Context(), 60)
	testbed.OK(t, err)
	for i := range 12 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("many%04d/%x", i*100+j, lease.ID), "", clientv3.WithLease(lease.ID)))
		}
		_, err := client.Txn(t.Context()).Then(ops...).Commit()
		testbed.OK(t, err)
	}
	mustPut(t, client, "data/without-a-lease", "x")
	mustPut(t, client, "nested/too/1f", "", clientv3.WithLease(lease.ID)) // not a name that we could write
	mustAcquire(t, d, ask("a/b", "me"))
	mustAcquire(t, d, ask("a!", "me"))
	mustAcquire(t, d, ask("a", "me"))
	for limit, want := range map[int][]string{
		0:    nil,
		4:    {"a", "a!", "a/b", "many0000"},
		9999: {"a", "a!", "a/b", "many0000"},
	} {
		locks, more, err := d.Locks(t.Context(), "", limit)
		if err != nil || more != (limit < 1203) || len(locks) != min(limit, 1203) {
			t.Fatalf("limit %d: %d locks, more %v, %v", limit, len(locks), more, err)
		}
		for i, name := range want {
			if locks[i].Name != name {
				t.Fatalf("%d is %q, want %q", i, locks[i].Name, name)
			}
		}
	}
	locks, more, err := d.Locks(t.Context(), "a/", 10)
	if err != nil || more || len(locks) != 1 || locks[0].Name != "a/b" {
		t.Fatalf("%+v, more %v, %v", locks, more, err)
	}
}

// TestLocksOverACompaction: a list whose revision etcd compacts between two pages can be repeated.
func TestLocksOverACompaction(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	for i := range page/100 + 1 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("many%04d/key", i*100+j), ""))
		}
		_, err := operator.Txn(t.Context()).Then(ops...).Commit()
		testbed.OK(t, err)
	}
	var armed atomic.Bool
	d := open(t, dial(t, server.Addr(), func(config *clientv3.Config) {
		intercept(config, func(_ context.Context, method string, call func() error) error {
			err := call()
			if method == "/etcdserverpb.KV/Range" && armed.CompareAndSwap(true, false) {
				_, failed := operator.Compact(bounded(t), mustPut(t, operator, "later", ""))
				err = errors.Join(err, failed)
			}
			return err
		})
	}), nil)
	armed.Store(true)
	if _, _, err := d.Locks(bounded(t), "", 10); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("a list over a compaction: %v (%v)", err, interlock.Kind(err))
	}
	if _, _, err := d.Locks(bounded(t), "", 10); err != nil || armed.Load() {
		t.Errorf("the list again: %v", err)
	}
}

func TestLockShowsWhatIsThere(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	now := time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC)
	d := open(t, dial(t, server.Addr()), &Options{Prefix: "ns/", TTL: 20 * time.Second, Now: func() time.Time { return now }})
	mustPut(t, client, "ns/n/by-hand", "")
	r := ask("n", "me")
	queue(t, d, r)
	state, err := d.Lock(t.Context(), "n")
	if err != nil || state.Holder == nil || len(state.Waiters) != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
	if h := state.Holder; !h.Foreign || h.Token != 0 || h.Expires != 0 || h.Owner != "foreign key without a lease" {
		t.Errorf("holder %+v", h)
	}
	w := state.Waiters[0]
	if w.Foreign || w.Owner != "me" || w.Token != 0 || !w.Since.Equal(now) || w.Expires <= 0 || w.Expires > 5*time.Second {
		t.Errorf("waiter %+v", w)
	}
}
