package redis

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// heardNames collects the names that a watcher hears.
type heardNames struct {
	mu    sync.Mutex
	names []string
}

func (h *heardNames) add(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = append(h.names, name)
}

func (h *heardNames) count(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, got := range h.names {
		if got == name {
			n++
		}
	}
	return n
}

func (h *heardNames) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.names)
}

type watcher interface {
	Watch(ctx context.Context, prefix string, changed func(string)) error
}

// watching starts to watch and returns when no change can be missed any more.
func watching(t testing.TB, d watcher, prefix string) (h *heardNames, stop func() error) {
	t.Helper()
	h = &heardNames{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Watch(ctx, prefix, h.add) }()
	h.await(t, "", 1)
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() { cancel(); err = <-ended })
		return err
	}
	t.Cleanup(func() { stop() })
	return h, stop
}

func (h *heardNames) await(t testing.TB, name string, n int) {
	t.Helper()
	testbed.Eventually(t, "a hint of "+name, bound, func() bool { return h.count(name) >= n })
}

func TestWatchSeesPlainLocks(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	below := &Options{Prefix: "jobs/"}
	p := plainOn(t, server.Addr(), below)
	h, _ := watching(t, openOn(t, server.Addr(), below), "")
	takePlain(t, plainOn(t, server.Addr(), nil), "elsewhere")
	owner := takePlain(t, p, "x")
	h.await(t, "x", 1)
	testbed.OK(t, p.Release(t.Context(), "x", owner))
	h.await(t, "x", 2)
	if names := h.all(); slices.Contains(names, "elsewhere") {
		t.Errorf("received a name outside the prefix: %q", names)
	}
}

// What foreign clients change is found by the next scan.
func TestWatchFindsForeignChanges(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	h, _ := watching(t, openOn(t, server.Addr(), nil), "")
	busy := openOn(t, server.Addr(), nil)
	began := time.Now()
	testbed.Eventually(t, "two scans", bound, func() bool {
		owner, _ := take(t, busy, "busy") // hints do not delay the scan
		release(t, busy, "busy", owner)
		return h.count("") >= 2
	})
	if took := time.Since(began); took < rescanEvery/2 || took > 2*rescanEvery {
		t.Errorf("%d glances after %v, want one every %v", h.count(""), took, rescanEvery)
	}
}

// A user that may not subscribe gets an error without endless retries.
func TestWatchIsRefused(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), nil)
	mustDo(t, dial(t, server.Addr()), "ACL", "SETUSER", "default", "resetchannels", "&interlock:push:*")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := d.Watch(ctx, "", func(string) {}); interlock.Kind(err) != interlock.Definite || ctx.Err() != nil {
		t.Errorf("without the right to subscribe: %v", err)
	}
	owner, _ := take(t, d, "x") // the lock needs no right to publish there either
	release(t, d, "x", owner)
}

// Watchers of one prefix share one subscription, and the last one ends it.
func TestWatchersShareASubscription(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	_, stop := watching(t, d, "a")
	_, stopToo := watching(t, d, "a")
	subscribers := func() int64 {
		return number(t, operator, "PUBSUB", "NUMPAT")
	}
	if n := subscribers(); n != 1 {
		t.Errorf("%d subscriptions for two watchers", n)
	}
	stop()
	if n := subscribers(); n != 1 {
		t.Errorf("%d subscriptions for the other watcher", n)
	}
	stopToo()
	testbed.Eventually(t, "the subscription ends", bound, func() bool { return subscribers() == 0 })
}
