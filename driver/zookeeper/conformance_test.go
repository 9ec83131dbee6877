package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const suiteTTL = 3 * time.Second

// harness shares one server among the tests that do not break it.
func harness(t *testing.T) drivertest.Harness {
	shared := testbed.Shared(t, fleeting)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			if exclusive {
				return start(t, borrow(t))
			}
			return start(t, shared)
		},
		TTL:       suiteTTL,
		Heartbeat: paceOf(suiteTTL).heartbeat,
		// sessions end with the tick of the server, which is 100 ms
		DeadWaiter: suiteTTL + time.Second,
	}
}

func TestFenced(t *testing.T)  { drivertest.RunFenced(t, harness(t)) }
func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, harness(t)) }
func TestBreaker(t *testing.T) { drivertest.RunBreaker(t, harness(t)) }

// system is a server with its own path for each driver.
type system struct {
	*paths.Server[driver.Fenced]
	root     string
	operator *zk.Conn // bypasses the faults of the paths
	ears     map[driver.Fenced]*atomic.Bool
}

// fleeting starts a server that removes containers soon after their last child, so that
// tests meet this often.
func fleeting(tb testing.TB, extra ...string) *testbed.Server {
	return testbed.ZooKeeper(tb, append(extra, "-Dznode.container.checkIntervalMs=50")...)
}

// borrow returns an empty server for this test only. A start takes a second of CPU
// time.
func borrow(t *testing.T) *testbed.Server {
	t.Helper()
	return testbed.Borrowed(t, fleeting, func(server *testbed.Server) {
		operator := dial(t, server.Addr())
		// Sessions that were not closed may still write to it.
		testbed.Eventually(t, "the server is empty", restored, func() bool {
			list, _, err := operator.Children("/")
			for _, child := range list {
				err = errors.Join(err, remove(operator, "/"+child))
			}
			return err == nil
		})
	})
}

// restored bounds how long the clients of a test that broke the server take to leave it.
const restored = time.Minute

// remove deletes a node and all below it, except for the server's own nodes.
func remove(conn *zk.Conn, path string) error {
	if path == "/zookeeper" {
		return nil
	}
	list, _, err := conn.Children(path)
	for _, child := range list {
		err = errors.Join(err, remove(conn, path+"/"+child))
	}
	if err = errors.Join(err, conn.Delete(path, -1)); errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

var namespaces atomic.Int64

func start(t *testing.T, server *testbed.Server) drivertest.Backend {
	return &system{
		Server:   paths.New[driver.Fenced](server),
		root:     fmt.Sprintf("/suite/%d", namespaces.Add(1)),
		operator: dial(t, server.Addr()),
		ears:     map[driver.Fenced]*atomic.Bool{},
	}
}

// dial connects a client until the test ends.
func dial(t testing.TB, addrs ...string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(addrs, 10*time.Second, zk.WithDialer(Dialer(patience/4, nil)), zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	testbed.OK(t, err)
	t.Cleanup(func() {
		conn.Close()
		for range events {
		}
	})
	return conn
}

func open(t testing.TB, o *Options) *Driver {
	t.Helper()
	d, err := Open(context.Background(), o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

func (b *system) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		deaf := new(atomic.Bool)
		hearing := func(packet []byte, greeting bool) bool {
			const event = 0xffffffff
			return greeting || !deaf.Load() || binary.BigEndian.Uint32(packet) != event
		}
		d, err := Open(t.Context(), &Options{Servers: []string{path.Addr()}, Root: b.root, TTL: suiteTTL,
			Dial: tapped(func() *tap { return &tap{received: hearing} })})
		if err != nil {
			return nil, err
		}
		b.ears[d] = deaf
		return d, nil
	})
}

func (b *system) Faults() drivertest.Faults { return b.Server }

func (b *system) DropPushes(_ *testing.T, d driver.Fenced) { b.ears[d].Store(true) }

func (b *system) contenders(t *testing.T, name string) []string {
	t.Helper()
	lock := layout{root: b.root}.lock(name)
	var list []string
	testbed.Eventually(t, "the operator can list "+lock, patience, func() (ok bool) {
		var err error
		list, _, err = b.operator.Children(lock)
		return err == nil || errors.Is(err, zk.ErrNoNode)
	})
	for i, child := range list {
		list[i] = lock + "/" + child
	}
	return list
}

func (b *system) Residue(t *testing.T, name string) []string {
	t.Helper()
	var left []string
	for _, path := range b.contenders(t, name) {
		if data, _, err := b.operator.Get(path); err == nil {
			left = append(left, fmt.Sprintf("%s = %s", path, data))
		}
	}
	return left
}

func (b *system) Delete(t *testing.T, name string) {
	t.Helper()
	for _, path := range b.contenders(t, name) {
		if err := b.operator.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Fatal(err)
		}
	}
}
