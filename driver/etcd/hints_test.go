package etcd

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// atOnce runs something right before the second transaction that a client sends
// after it is set.
type atOnce struct {
	n  atomic.Int64
	do atomic.Pointer[func()]
}

func (a *atOnce) second(do func()) {
	a.n.Store(0)
	a.do.Store(&do)
}

func (a *atOnce) on(config *clientv3.Config) {
	intercept(config, func(_ context.Context, method string, call func() error) error {
		if strings.HasSuffix(method, "/Txn") && a.n.Add(1) == 2 {
			if do := a.do.Load(); do != nil {
				(*do)()
			}
		}
		return call()
	})
}

// hearing collects the hints of one Watch, until the test ends.
type hearing struct {
	mu  sync.Mutex
	all []string
}

func hear(t *testing.T, d *Driver, prefix string) *hearing {
	t.Helper()
	h := &hearing{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- d.Watch(ctx, prefix, func(name string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.all = append(h.all, name)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	testbed.Eventually(t, "the watch begins", patience, func() bool { return h.count("") == 1 })
	return h
}

func (h *hearing) count(name string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hint := range h.all {
		if hint == name {
			n++
		}
	}
	return n
}

// TestHintsCostNothing: neither a Watch nor its hints need a request or a goroutine
// of the driver.
func TestHintsCostNothing(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	var count counter
	d, other := open(t, dial(t, server.Addr(), count.on), nil), open(t, dial(t, server.Addr()), nil)
	before := count.n.Load()
	all := []*hearing{hear(t, d, ""), hear(t, d, "n"), hear(t, d, "n"), hear(t, d, "m")}
	for range 20 {
		mustAcquire(t, other, ask("n", "holder"))
		mustRelease(t, other, ask("n", "holder"))
	}
	mustAcquire(t, other, ask("m", "holder"))
	testbed.Eventually(t, "everything is reported", patience, func() bool {
		return all[0].count("m") > 0 && all[3].count("m") > 0 && all[1].count("n") > 0 && all[2].count("n") > 0
	})
	if got := count.n.Load() - before; got != 0 {
		t.Fatalf("%d requests", got)
	}
}

// TestHintsWithoutTheWatch: if it falls silent while no lock is in use here, that
// is noticed, and listeners read again.
func TestHintsWithoutTheWatch(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	deaf := deafen(client)
	d := open(t, client, nil)
	h := hear(t, d, "")
	deaf.deaf.Store(true)
	mustPut(t, dial(t, server.Addr()), "n/foreign", "")
	testbed.Eventually(t, "the silence is noticed", patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !d.session.watch.up
	})
	deaf.deaf.Store(false)
	testbed.Eventually(t, "listeners read again", patience, func() bool { return h.count("") > 1 })
	mustPut(t, dial(t, server.Addr()), "m/foreign", "")
	testbed.Eventually(t, "changes are reported again", patience, func() bool { return h.count("m") > 0 })
}

// TestHintsOverALostSession: another one is opened automatically.
func TestHintsOverALostSession(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	d := open(t, dial(t, server.Addr()), &Options{TTL: 2 * time.Second})
	h := hear(t, d, "")
	d.mu.Lock()
	lease := d.session.id
	d.mu.Unlock()
	_, err := operator.Revoke(bounded(t), lease)
	testbed.OK(t, err)
	testbed.Eventually(t, "listeners read again", patience, func() bool { return h.count("") > 1 })
	mustPut(t, operator, "n/foreign", "")
	testbed.Eventually(t, "changes are reported again", patience, func() bool { return h.count("n") > 0 })
}

// TestHintsOfNestedNames: a contender of another client is in every lock above it.
func TestHintsOfNestedNames(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	raw := open(t, dial(t, server.Addr()), &Options{RawNames: true})
	h := hear(t, raw, "")
	mustPut(t, operator, "a/b/1f", "")
	testbed.Eventually(t, "both are reported", patience, func() bool { return h.count("a") > 0 && h.count("a/b") > 0 })
}

// TestFirstHintIsAny: events of a watch that is being replaced come before the first hint, and give none.
func TestFirstHintIsAny(t *testing.T) {
	t.Parallel()
	d, s := machine(t)
	d.listeners = map[*driver.Mailbox]bool{}
	s.watch.wanted = changes
	box := driver.NewMailbox("", driver.MostNames)
	d.attach(box, s)
	event := clientv3.WatchResponse{Events: []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte("n/1f")}}}}
	s.watch.take(changes, event)
	if names, missed := box.Take(); len(names) > 0 || missed {
		t.Errorf("before the watch: %q, missed %v", names, missed)
	}
	s.watch.take(changes, clientv3.WatchResponse{Created: true, Header: &pb.ResponseHeader{}})
	s.watch.take(changes, event)
	if names, missed := box.Take(); len(names) != 1 || !missed {
		t.Errorf("in the watch: %q, missed %v", names, missed)
	}
}
