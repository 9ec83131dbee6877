package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const suiteTTL = 3 * time.Second

// TestSuite runs the whole suite of locks, with one API server for all tests that
// do not break it.
func TestSuite(t *testing.T) {
	shared, breakable := sharedServer(t), newLanes(t, 2)
	h := drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			if exclusive {
				return start(t, breakable.take(t))
			}
			return start(t, shared)
		},
		TTL:        suiteTTL,
		Heartbeat:  paceOf(suiteTTL).quiet,
		DeadWaiter: 2 * time.Second, // waiters are unknown to Kubernetes, so this is for slow machines
		HandOvers:  100,
		Names:      20,
		Without:    drivertest.FIFO | drivertest.Queue,
	}
	t.Run("Fenced", func(t *testing.T) { drivertest.RunFenced(t, h) })
	t.Run("Watcher", func(t *testing.T) { drivertest.RunWatcher(t, h) })
	t.Run("Breaker", func(t *testing.T) { drivertest.RunBreaker(t, h) })
}

// sharedServer serves all tests that do not break it; it also has client-go's newest kind of
// elections.
func sharedServer(t *testing.T) *testbed.Kube {
	t.Helper()
	return testbed.SharedKube(t, "--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true")
}

// lanes are API servers that tests break, each by one test at a time. A start takes
// seconds of CPU time, so they are reused.
type lanes struct {
	t    *testing.T // owner of the servers
	free chan *testbed.Kube
}

func newLanes(t *testing.T, n int) lanes {
	l := lanes{t, make(chan *testbed.Kube, n)}
	for range n {
		l.free <- nil // started on first use
	}
	return l
}

// take returns a server for this test only. One on which a test failed is not
// reused.
func (l lanes) take(t *testing.T) *testbed.Kube {
	k := <-l.free
	t.Cleanup(func() {
		if t.Failed() {
			k = nil
		}
		l.free <- k
	})
	if k == nil {
		k = testbed.KubeAPIServer(l.t)
	}
	return k
}

// system is a namespace on a server, with its own path for each driver.
type system struct {
	t *testing.T
	*paths.Server[driver.Fenced]
	kube      *testbed.Kube
	namespace string
	operator  kubernetes.Interface // bypasses the faults of the paths
	ears      map[driver.Fenced]*ear
	advisory  bool
}

var namespaces atomic.Int64

func start(t *testing.T, k *testbed.Kube) *system {
	t.Helper()
	b := &system{t: t, Server: paths.New[driver.Fenced](k.Server), kube: k, ears: map[driver.Fenced]*ear{},
		namespace: fmt.Sprint("suite-", namespaces.Add(1)), operator: operate(t, k)}
	b.makeNamespace()
	return b
}

// operate returns a client that connects directly to the server.
func operate(t testing.TB, k *testbed.Kube) kubernetes.Interface {
	t.Helper()
	config := configFor(k, k.Addr())
	config.QPS = -1
	transport := &http.Transport{}
	tls, err := rest.TLSConfigFor(config)
	testbed.OK(t, err)
	transport.TLSClientConfig = tls
	t.Cleanup(transport.CloseIdleConnections)
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	testbed.OK(t, err)
	client, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: wrapped, Timeout: patience})
	testbed.OK(t, err)
	return client
}

func (b *system) makeNamespace() {
	b.t.Helper()
	n := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}
	_, err := b.operator.CoreV1().Namespaces().Create(context.Background(), n, metav1.CreateOptions{})
	testbed.OK(b.t, err)
}

// wipe also creates the namespace again, like an administrator.
func (b *system) wipe() {
	b.Server.Wipe()
	b.makeNamespace()
}

const patience = testbed.Patience

// configFor returns a user's config for the server at addr, "host:port".
func configFor(k *testbed.Kube, addr string) *rest.Config {
	return &rest.Config{Host: "https://" + addr, BearerToken: testbed.KubeAdmin,
		TLSClientConfig: rest.TLSClientConfig{CAData: k.CA}}
}

func (b *system) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		config, e := configFor(b.kube, path.Addr()), &ear{}
		config.Wrap(e.wrap)
		d, err := b.openAt(t, config)
		if err != nil {
			return nil, err
		}
		b.ears[d] = e
		return d, nil
	})
}

func (b *system) openAt(t *testing.T, config *rest.Config) (driver.Fenced, error) {
	o := &Options{TTL: suiteTTL, Namespace: b.namespace, Prefix: "suite-"}
	if !b.advisory {
		return Open(t.Context(), config, o)
	}
	d, err := OpenAdvisory(t.Context(), config, o)
	return drivertest.Advisory(d), err
}

// faults are those of the paths, except a wipe.
type faults struct {
	*paths.Server[driver.Fenced]
	b *system
}

func (f faults) Wipe() { f.b.wipe() }

func (b *system) Faults() drivertest.Faults { return faults{b.Server, b} }

func (b *system) DropPushes(_ *testing.T, d driver.Fenced) { b.ears[d].deaf.Store(true) }

func (b *system) object(t *testing.T, name string) string {
	t.Helper()
	object, ok := layout{prefix: "suite-"}.object(name)
	if !ok {
		t.Fatalf("%q has no object", name)
	}
	return object
}

func (b *system) Residue(t *testing.T, name string) []string {
	t.Helper()
	l, err := b.operator.CoordinationV1().Leases(b.namespace).Get(context.Background(), b.object(t, name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	testbed.OK(t, err)
	if holder := (object{lease: l}).holder(); holder != "" {
		return []string{holder}
	}
	return nil
}

func (b *system) Delete(t *testing.T, name string) {
	t.Helper()
	err := b.operator.CoordinationV1().Leases(b.namespace).Delete(context.Background(), b.object(t, name), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// ear drops all events of watches while it is deaf; requests are answered.
type ear struct{ deaf atomic.Bool }

func (e *ear) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && r.URL.Query().Get("watch") != "" {
			answer.Body = &deafBody{answer.Body, e}
		}
		return answer, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type deafBody struct {
	io.ReadCloser
	ear *ear
}

func (b *deafBody) Read(p []byte) (int, error) {
	for {
		n, err := b.ReadCloser.Read(p)
		if err != nil || !b.ear.deaf.Load() {
			return n, err
		}
	}
}

// TestShapes: readers and writers, permits and several names on Kubernetes.
func TestShapes(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, start(t, sharedServer(t)))
}

// testElection: each leader resigns, and the next one has a higher term.
func testElection(s *scene) {
	var last interlock.Token
	for range 3 {
		e, err := elect.New(s.open(Options{}), nil)
		testbed.OK(s, err)
		err = e.Run(s.Context(), "leader", func(_ context.Context, term *elect.Term) error {
			if term.Token() <= last {
				s.Errorf("term %d after %d", term.Token(), last)
			}
			last = term.Token()
			return nil
		})
		testbed.OK(s, errors.Join(err, e.Close(s.Context())))
	}
}

// testServerClockJumps: a holder keeps its lock and tokens rise, wherever the API
// server's clock jumps.
func testServerClockJumps(s *scene) {
	var ahead atomic.Int64
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil {
			answer.Header.Set("Date", time.Now().Add(time.Duration(ahead.Load())).UTC().Format(http.TimeFormat))
		}
		return answer, err
	})
	d, other := s.open(Options{}), s.open(Options{})
	for i, jump := range []time.Duration{0, years, -10 * time.Hour, 10 * time.Hour} {
		owner := fmt.Sprint("owner ", i)
		g := s.acquire(d, "n", owner)
		ahead.Store(int64(jump))
		if _, err := s.try(other, "n", "late"); !errors.Is(err, interlock.ErrHeld) {
			s.Fatalf("the clock went by %v, and another is granted the lock: %v", jump, err)
		}
		if g.Lease.Remaining() <= 0 {
			s.Fatalf("the clock went by %v, and the lease has ended", jump)
		}
		s.release(d, "n", owner)
		s.sees(other, "n", "it is free", func(now sight) bool { return now.holder() == "" })
		if next := s.acquire(other, "n", owner+"'s heir"); next.Token <= g.Token || driver.Plausible(next.Token.Counter(), time.Now()) != nil {
			s.Fatalf("the clock went by %v: token %d after %d", jump, next.Token, g.Token)
		}
		s.release(other, "n", owner+"'s heir")
		s.sees(d, "n", "it is free", func(now sight) bool { return now.holder() == "" })
	}
}
