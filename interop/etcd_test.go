// Package interop tests drivers against other clients of the same backends: the real
// programs and libraries, on a real server. It also has the tests that need drivers of
// several modules.
package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const patience = testbed.Patience

// etcdBed is a server with our driver.
type etcdBed struct {
	*testing.T
	server *testbed.Server
	client *clientv3.Client
	ours   *etcd.Driver
}

func onEtcd(t *testing.T, o *etcd.Options) *etcdBed {
	t.Helper()
	server := testbed.Etcd(t, "--unsafe-no-fsync")
	b := &etcdBed{T: t, server: server}
	b.client = b.dial()
	b.ours = b.open(o)
	return b
}

func (b *etcdBed) dial() *clientv3.Client {
	b.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{b.server.Addr()}, Logger: zap.NewNop()})
	testbed.OK(b, err)
	b.Cleanup(func() {
		if err := client.Close(); err != nil {
			b.Error(err)
		}
	})
	return client
}

func (b *etcdBed) open(o *etcd.Options) *etcd.Driver {
	b.Helper()
	d, err := etcd.Open(b.Context(), b.dial(), o)
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	return d
}

// contender wants a lock, with our driver or a foreign client: it is granted or
// waits, and releases.
type contender struct {
	who     string
	granted chan error
	release func()
}

// acquire requests a lock with our driver. It returns when the request is queued.
func (b *etcdBed) acquire(d *etcd.Driver, lock, owner string) *contender {
	b.Helper()
	c := &contender{who: owner, granted: make(chan error, 1)}
	before := b.inLine(lock)
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	b.Cleanup(cancel)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Name: lock, Owner: owner})
		c.granted <- err
	}()
	c.release = func() {
		if err := d.Release(context.Background(), lock, owner); err != nil {
			b.Errorf("release %s: %v", owner, err)
		}
	}
	testbed.Eventually(b, "our request is in line", patience, func() bool { return b.inLine(lock) > before })
	return c
}

// etcdctl runs the real program, with the lease that it creates itself.
func (b *etcdBed) etcdctl(lock string, ttl int) (*contender, *testbed.Process) {
	b.Helper()
	before := b.inLine(lock)
	p := testbed.Command(b, testbed.Binary(b, "etcdctl"), "--endpoints", b.server.Addr(),
		"lock", lock, "--ttl", fmt.Sprint(ttl))
	c := &contender{who: "etcdctl", granted: make(chan error, 1)}
	go func() {
		if key, ok := <-p.Stdout(); !ok || !strings.HasPrefix(key, lock+"/") {
			c.granted <- fmt.Errorf("etcdctl printed %q", key)
			return
		}
		c.granted <- nil
	}()
	c.release = func() { p.Signal(syscall.SIGTERM) }
	testbed.Eventually(b, "etcdctl is in line", patience, func() bool { return b.inLine(lock) > before })
	return c, p
}

// mutex uses the Go package concurrency, in its own session.
func (b *etcdBed) mutex(lock string) (*contender, *concurrency.Mutex) {
	b.Helper()
	before := b.inLine(lock)
	m := concurrency.NewMutex(b.session(), lock)
	c := &contender{who: "mutex", granted: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	b.Cleanup(cancel)
	go func() { c.granted <- m.Lock(ctx) }()
	c.release = func() {
		if err := m.Unlock(context.Background()); err != nil {
			b.Errorf("unlock: %v", err)
		}
	}
	testbed.Eventually(b, "the mutex is in line", patience, func() bool { return b.inLine(lock) > before })
	return c, m
}

func (b *etcdBed) session() *concurrency.Session {
	b.Helper()
	s, err := concurrency.NewSession(b.dial(), concurrency.WithTTL(10))
	testbed.OK(b, err)
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func (b *etcdBed) inLine(lock string) int {
	b.Helper()
	reply, err := b.client.Get(b.Context(), lock+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	testbed.OK(b, err)
	return int(reply.Count)
}

func (c *contender) mustHold(t testing.TB) {
	t.Helper()
	if err := testbed.Receive(t, c.granted, c.who); err != nil {
		t.Fatalf("%s: %v", c.who, err)
	}
}

// mustWait checks once, after all earlier contenders are queued.
func (b *etcdBed) mustWait(waiting ...*contender) {
	b.Helper()
	for _, c := range waiting {
		select {
		case err := <-c.granted:
			b.Fatalf("%s is granted (%v) before its turn", c.who, err)
		default:
		}
	}
}

// mustRefuse requires that our driver reports the holder.
func (b *etcdBed) mustRefuse(lock string) {
	b.Helper()
	_, err := b.ours.Acquire(b.Context(), driver.Request{Name: lock, Owner: "impatient", NoWait: true})
	if !errors.Is(err, interlock.ErrHeld) {
		b.Fatalf("a lock that another client holds: %v", err)
	}
}

// TestOneLineForAll checks that contenders are granted in the order in which they
// queued, one at a time.
func TestOneLineForAll(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	const lock = "nightly"
	other := b.open(nil)
	ctl, _ := b.etcdctl(lock, 10)
	ctl.mustHold(b)
	b.mustRefuse(lock)
	line := []*contender{ctl}
	line = append(line, b.acquire(b.ours, lock, "ours 1"))
	m, _ := b.mutex(lock)
	line = append(line, m, b.acquire(other, lock, "theirs 2"))
	ctl, _ = b.etcdctl(lock, 10)
	line = append(line, ctl)
	m, _ = b.mutex(lock)
	line = append(line, m, b.acquire(b.ours, lock, "ours 3"))
	for i, c := range line[:len(line)-1] {
		b.mustWait(line[i+1:]...)
		began := time.Now()
		c.release()
		line[i+1].mustHold(b)
		t.Logf("%s to %s: %v", c.who, line[i+1].who, time.Since(began).Round(100*time.Microsecond))
	}
	line[len(line)-1].release()
	testbed.Eventually(b, "nobody is in line", patience, func() bool { return b.inLine(lock) == 0 })
}

// TestWeExcludeOthers checks that foreign clients cannot get our lock.
func TestWeExcludeOthers(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	ours := b.acquire(b.ours, "n", "ours")
	ours.mustHold(b)
	if err := concurrency.NewMutex(b.session(), "n").TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("TryLock: %v", err)
	}
	ours.release()
	if err := concurrency.NewMutex(b.session(), "n").TryLock(t.Context()); err != nil {
		t.Fatalf("TryLock of a free lock: %v", err)
	}
}

// TestNeverTwoAtOnce has many contenders of both kinds on one lock.
func TestNeverTwoAtOnce(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	const each, rounds = 3, 5
	n := &turns{TB: t}
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for i := range each {
		m := concurrency.NewMutex(b.session(), "n")
		wg.Go(func() {
			for range rounds {
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				n.take()
				if err := m.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
		d := b.open(nil)
		wg.Go(func() { n.ours(ctx, d, "n", fmt.Sprint("ours ", i), rounds) })
	}
	wg.Wait()
	if got := n.total.Load(); got != 2*each*rounds {
		t.Fatalf("%d turns, want %d", got, 2*each*rounds)
	}
}

// TestForeignHolderCrashes checks that ours is granted after the foreign lease ends.
func TestForeignHolderCrashes(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	ctl, p := b.etcdctl("n", 5) // a busy machine renews late
	ctl.mustHold(b)
	ours := b.acquire(b.ours, "n", "ours")
	p.Kill()
	began := time.Now()
	b.mustWait(ours)
	ours.mustHold(b)
	t.Logf("served %v after the crash of a holder with a TTL of 5 s", time.Since(began).Round(time.Millisecond))
}

// TestForeignWaiterCrashes checks that a crashed waiter does not block the queue.
func TestForeignWaiterCrashes(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	first := b.acquire(b.ours, "n", "first")
	first.mustHold(b)
	_, p := b.etcdctl("n", 2)
	last := b.acquire(b.ours, "n", "last")
	p.Kill()
	first.release()
	last.mustHold(b)
}

// TestOurCrashFreesOthers checks that, after a crash of our process, a foreign waiter
// is granted when our lease ends.
func TestOurCrashFreesOthers(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	proxy := testbed.NewProxy(t, b.server.Addr())
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{proxy.Addr()}, Logger: zap.NewNop()})
	testbed.OK(t, err)
	defer client.Close()
	dying, err := etcd.Open(t.Context(), client, &etcd.Options{TTL: 2 * time.Second})
	testbed.OK(t, err)
	defer dying.Close(context.Background())
	b.acquire(dying, "n", "dying").mustHold(b)
	m, _ := b.mutex("n")
	ctl, _ := b.etcdctl("n", 10)
	proxy.Cut()
	m.mustHold(b)
	b.mustWait(ctl)
	m.release()
	ctl.mustHold(b)
}

// TestForeignContendersAreShown shows them by their leases, their only identity.
func TestForeignContendersAreShown(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	ctl, _ := b.etcdctl("n", 30)
	ctl.mustHold(b)
	b.acquire(b.ours, "n", "ours")
	b.mutex("n")
	state, err := b.ours.Lock(t.Context(), "n")
	if err != nil || state.Holder == nil || len(state.Waiters) != 2 {
		t.Fatalf("%+v, %v", state, err)
	}
	if h := state.Holder; !h.Foreign || h.Token != 0 || !strings.HasPrefix(h.Owner, "foreign lease ") ||
		h.Expires < 15*time.Second || h.Expires > 30*time.Second {
		t.Errorf("holder %+v", h)
	}
	if w := state.Waiters; w[0].Foreign || w[0].Owner != "ours" || !w[1].Foreign {
		t.Errorf("waiters %+v", w)
	}
	locks, more, err := b.ours.Locks(t.Context(), "", 10)
	if err != nil || more || len(locks) != 1 || locks[0].Name != "n" || !locks[0].Holder.Foreign {
		t.Errorf("%+v, more %v, %v", locks, more, err)
	}
	_, err = b.ours.Acquire(t.Context(), driver.Request{Name: "n", Owner: "impatient", NoWait: true})
	var held *interlock.HeldError
	if !errors.As(err, &held) || held.Owner != state.Holder.Owner {
		t.Errorf("refused with %v", err)
	}
}

// TestRawNames includes foreign lock names with slashes.
func TestRawNames(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, &etcd.Options{RawNames: true})
	ctl, _ := b.etcdctl("jobs/nightly", 10)
	ctl.mustHold(b)
	b.mustRefuse("jobs/nightly")
	ours := b.acquire(b.ours, "jobs/nightly", "ours")
	ctl.release()
	ours.mustHold(b)
}

// TestForeignWriterPassesTheSameGuard writes with the token of its create revision,
// between our earlier and our later holder.
func TestForeignWriterPassesTheSameGuard(t *testing.T) {
	t.Parallel()
	b := onEtcd(t, nil)
	fence := etcd.NewFence(b.client, "")
	enter := func(token interlock.Token) error {
		return fence.Enter(t.Context(), driver.Raise{Resource: "r", Token: token, Source: "test"})
	}
	grant := func(d *etcd.Driver, owner string) interlock.Token {
		g, err := d.Acquire(t.Context(), driver.Request{Name: "n", Owner: owner})
		testbed.OK(t, err)
		testbed.OK(t, d.Release(t.Context(), "n", owner))
		return g.Token
	}
	before := grant(b.ours, "before")
	c, m := b.mutex("n")
	c.mustHold(b)
	later := b.open(nil) // raises the base while the foreign client holds
	reply, err := b.client.Get(t.Context(), m.Key())
	testbed.OK(t, err)
	foreign, err := b.ours.Token(t.Context(), reply.Kvs[0].CreateRevision)
	testbed.OK(t, err)
	c.release()
	after := grant(later, "after")
	for _, token := range []interlock.Token{before, foreign, after} {
		testbed.OK(t, enter(token))
	}
	if err := enter(foreign); !errors.Is(err, interlock.ErrStaleToken) {
		t.Fatalf("a foreign writer that is late: %v", err)
	}
}
