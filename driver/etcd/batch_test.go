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
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func askFor(owner string, names ...string) (all []driver.Request) {
	for _, name := range names {
		all = append(all, ask(name, owner+" of "+name).Request)
	}
	return all
}

func releaseAll(t testing.TB, d *Driver, requests []driver.Request) {
	t.Helper()
	for _, r := range requests {
		mustRelease(t, d, request{Request: r})
	}
}

// TestSeveralNamesCostOneRequest, and one for each release. A refusal is one.
func TestSeveralNamesCostOneRequest(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), nil)
	const rounds = 50
	before := count.n.Load()
	for i := range rounds {
		all := askFor(fmt.Sprint(i), "a", "b", "c")
		_, err := d.AcquireAll(bounded(t), all)
		testbed.OK(t, err)
		releaseAll(t, d, all)
	}
	if got := count.n.Load() - before; got != 4*rounds {
		t.Errorf("%d requests for %d times three names", got, rounds)
	}
	mustAcquire(t, d, ask("c", "holder"))
	before = count.n.Load()
	all := askFor("late", "a", "b", "c")
	if _, err := d.AcquireAll(bounded(t), all); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	releaseAll(t, d, all)
	if got := count.n.Load() - before; got != 1 {
		t.Errorf("%d requests for a refusal", got)
	}
}

// TestNamesThatLieInsideEachOther have no order in the line of the outer name.
func TestNamesThatLieInsideEachOther(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), &Options{RawNames: true})
	before := count.n.Load()
	for _, names := range [][]string{{"a", "a/b"}, {"x", "a/b/c", "a"}} {
		if _, err := d.AcquireAll(bounded(t), askFor("o", names...)); !errors.Is(err, driver.ErrNotInOneStep) {
			t.Errorf("%q: %v", names, err)
		}
	}
	if got := count.n.Load() - before; got != 0 {
		t.Errorf("%d requests for calls that the driver refuses", got)
	}
	all := askFor("o", "a/b", "a/bc", "a/c")
	_, err := d.AcquireAll(bounded(t), all)
	testbed.OK(t, err)
	releaseAll(t, d, all)
}

// TestServerThatAllowsFewerOperations: its refusal is an error that leaves nothing.
func TestServerThatAllowsFewerOperations(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t, "--unsafe-no-fsync", "--max-txn-ops=4")
	client := dial(t, server.Addr())
	d := open(t, client, &Options{Prefix: "locks/"})
	all := askFor("o", "a", "b", "c")
	if _, err := d.AcquireAll(bounded(t), all); !errors.Is(err, driver.ErrNotInOneStep) || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("%v (%v)", err, interlock.Kind(err))
	}
	if n := len(d.contenders); n != 0 {
		t.Errorf("%d contenders are remembered", n)
	}
	two := askFor("o", "a", "b")
	_, err := d.AcquireAll(bounded(t), two)
	testbed.OK(t, err)
	releaseAll(t, d, two)
	if left := keys(t, client, "locks/a"); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// TestSeveralNamesStoreTheBaseOfTheirTime: another session raises it in between.
func TestSeveralNamesStoreTheBaseOfTheirTime(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d := open(t, client, nil)
	for i := range 20 {
		raised := mustBase(t, client, time.Duration(i)*time.Second)
		all := askFor(fmt.Sprint(i), "a", "b")
		grants, err := d.AcquireAll(bounded(t), all)
		testbed.OK(t, err)
		for _, g := range grants {
			if g.Token.Counter() <= raised {
				t.Fatalf("counter %d under a base of %d", g.Token.Counter(), raised)
			}
		}
		releaseAll(t, d, all)
	}
}

// mustBase raises the base like a session with a later clock.
func mustBase(t testing.TB, client *clientv3.Client, ahead time.Duration) int64 {
	t.Helper()
	value := interlock.CounterAt(time.Now().Add(ahead + time.Hour))
	mustPut(t, client, "interlock.base", fmt.Sprint(value))
	return value
}

// TestSeveralNamesAfterTheSessionEnded: the owners' keys under the last session do
// not block them.
func TestSeveralNamesAfterTheSessionEnded(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d := open(t, client, nil)
	all := askFor("o", "a", "b")
	first, err := d.AcquireAll(bounded(t), all)
	testbed.OK(t, err)
	d.mu.Lock()
	d.session.endLocked(errTimeRanOut) // etcd still keeps the lease and its keys
	d.mu.Unlock()
	again, err := d.AcquireAll(bounded(t), all)
	testbed.OK(t, err)
	for i, g := range again {
		if g.Token <= first[i].Token || first[i].Lease.Remaining() > 0 || g.Lease.Remaining() <= 0 {
			t.Errorf("%q: token %d after %d", all[i].Name, g.Token, first[i].Token)
		}
	}
	releaseAll(t, d, all)
	if left := append(keys(t, client, "a/"), keys(t, client, "b/")...); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// TestSeveralNamesGivenUpLate: late requests of a cancelled caller that has
// released leave nothing.
func TestSeveralNamesGivenUpLate(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	path := testbed.NewProxy(t, server.Addr())
	operator := dial(t, server.Addr())
	var giveUp atomic.Pointer[context.CancelFunc] // soon after the next request
	d := open(t, dial(t, path.Addr(), func(config *clientv3.Config) {
		intercept(config, func(_ context.Context, _ string, call func() error) error {
			if cancel := giveUp.Swap(nil); cancel != nil {
				time.AfterFunc(20*time.Millisecond, *cancel)
			}
			return call()
		})
	}), nil)
	path.Delay(50 * time.Millisecond)
	for i := range 5 {
		all := askFor(fmt.Sprint(i), "a", "b")
		ctx, cancel := context.WithCancel(t.Context())
		giveUp.Store(&cancel)
		_, err := d.AcquireAll(ctx, all)
		cancel()
		if interlock.Kind(err) != interlock.Uncertain {
			t.Fatalf("%v (%v)", err, interlock.Kind(err))
		}
		releaseAll(t, d, all)
	}
	path.Heal()
	testbed.Eventually(t, "nothing is left", patience, func() bool {
		return len(keys(t, operator, "a/"))+len(keys(t, operator, "b/")) == 0
	})
}
