package testbed

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"
)

// shared are the servers that all tests of this process use, by the function that started
// them.
var shared struct {
	sync.Mutex
	servers    map[uintptr]*Server
	idle       map[uintptr][]*Server // of Borrowed
	kube       *Kube
	namespaces int
	ends       []func()
}

// Shared returns the server that all tests of this process share. start is [Postgres],
// [MariaDB], [Redis], [Etcd], [ZooKeeper], [Kafka], [NATS], [Consul] or [SQSEmulator], and runs once. The server ends with the
// process, or when [Main] has run the tests. A test must not stop, pause or wipe it, and
// must use its own names.
func Shared(tb testing.TB, start func(testing.TB, ...string) *Server) *Server {
	tb.Helper()
	s := sharedBy(tb, start)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("shared %s on %v%s", s.kind.name, s.ports, s.tail())
		}
	})
	return s
}

func sharedBy(tb testing.TB, start func(testing.TB, ...string) *Server) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.servers == nil {
		shared.servers = map[uintptr]*Server{}
	}
	key := reflect.ValueOf(start).Pointer()
	if shared.servers[key] == nil {
		shared.servers[key] = start(lasting{tb})
	}
	return shared.servers[key]
}

// Borrowed returns a server for this test alone: one that a finished test has returned, or a
// new one. The test must leave it running. After the test's clean-up, clean empties it for
// the next test. It ends as that of [Shared] does. If the test fails, the server is not
// borrowed again.
func Borrowed(tb testing.TB, start func(testing.TB, ...string) *Server, clean func(*Server)) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	key := reflect.ValueOf(start).Pointer()
	var s *Server
	if idle := shared.idle[key]; len(idle) > 0 {
		s, shared.idle[key] = idle[len(idle)-1], idle[:len(idle)-1]
		s.tb = lasting{tb}
	} else {
		s = start(lasting{tb})
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("borrowed %s on %v%s", s.kind.name, s.ports, s.tail())
			return
		}
		clean(s)
		shared.Lock()
		defer shared.Unlock()
		if shared.idle == nil {
			shared.idle = map[uintptr][]*Server{}
		}
		shared.idle[key] = append(shared.idle[key], s)
	})
	return s
}

// SharedKube returns an API server like [Shared], with the arguments of the first call. The test has its own
// namespace there.
func SharedKube(tb testing.TB, extra ...string) *Kube {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.kube == nil {
		shared.kube = KubeAPIServer(lasting{tb}, extra...)
	}
	k := *shared.kube
	shared.namespaces++
	k.Namespace = fmt.Sprint("test-", shared.namespaces)
	if err := k.create(k.Namespace); err != nil {
		tb.Fatalf("create namespace %s: %v", k.Namespace, err)
	}
	return &k
}

// endShared stops the shared servers.
func endShared() {
	shared.Lock()
	defer shared.Unlock()
	for _, end := range slices.Backward(shared.ends) {
		end()
	}
	shared.servers, shared.idle, shared.kube, shared.ends = nil, nil, nil, nil
}

// lasting is the test that starts a shared server. Its clean-up runs when the process ends,
// not when that test does.
type lasting struct{ testing.TB }

// Cleanup must be called with shared locked.
func (lasting) Cleanup(end func()) { shared.ends = append(shared.ends, end) }

func (lasting) Failed() bool { return false }

func (lasting) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
