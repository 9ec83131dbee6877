package zookeeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestValues(t *testing.T) {
	t.Parallel()
	shared := testbed.Shared(t, fleeting)
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			b := &valuesBackend{server: shared, root: fmt.Sprintf("/suite/%d", namespaces.Add(1))}
			if exclusive {
				b.server = borrow(t)
			}
			b.Server = paths.New[*Values](b.server)
			return b
		},
	})
}

type valuesBackend struct {
	*paths.Server[*Values]
	server *testbed.Server
	root   string
	armed  atomic.Bool // the next write loses its answer
}

// DropReplies waits for a write: before one is a read, which tells more.
func (b *valuesBackend) DropReplies() { b.armed.Store(true) }

// noticedConn is a connection on which writes are noticed.
type noticedConn struct {
	net.Conn
	path  *testbed.Proxy
	armed *atomic.Bool
}

// Write gets whole packets from the client: their length, number and operation.
func (c *noticedConn) Write(p []byte) (int, error) {
	const create, setData = 1, 5
	if len(p) >= 12 && c.armed.Load() {
		switch binary.BigEndian.Uint32(p[8:]) {
		case create, setData:
			c.armed.Store(false)
			c.path.DropReplies()
		}
	}
	return c.Conn.Write(p)
}

func (b *valuesBackend) Open(t *testing.T) (driver.Values, error) {
	return b.Lead(t, func(path *testbed.Proxy) (*Values, error) {
		return valuesAt(t, path.Addr(), b.root, func(conn net.Conn) net.Conn { return &noticedConn{conn, path, &b.armed} }), nil
	})
}

func (b *valuesBackend) Beside(t *testing.T) (driver.Values, error) {
	return valuesAt(t, b.server.Addr(), b.root, func(conn net.Conn) net.Conn { return conn }), nil
}

func (b *valuesBackend) Faults() drivertest.Faults { return b }

// valuesAt connects, as far as the path allows.
func valuesAt(t *testing.T, addr, root string, over func(net.Conn) net.Conn) *Values {
	t.Helper()
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		return over(conn), nil
	}
	conn, events, err := zk.Connect([]string{addr}, 3*time.Second, zk.WithDialer(dial), zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	testbed.OK(t, err)
	t.Cleanup(func() {
		conn.Close()
		for range events {
		}
	})
	testbed.Eventually(t, "a session", patience, func() bool { return conn.State() == zk.StateHasSession })
	return NewValues(conn, root)
}

// interjectingConn runs something before the first change of data that it passes.
type interjectingConn struct {
	net.Conn
	once *sync.Once
	then func()
}

func (c interjectingConn) Write(p []byte) (int, error) {
	const setData = 5
	if len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == setData {
		c.once.Do(c.then)
	}
	return c.Conn.Write(p)
}

// TestValueIsWrittenOverWhatWasRead: one that came in between is not overwritten
// by a lower token.
func TestValueIsWrittenOverWhatWasRead(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	now := interlock.CounterAt(time.Now())
	value := func(ahead int64, data string) driver.Value {
		token, err := interlock.NewToken(now+ahead, 0)
		testbed.OK(t, err)
		return driver.Value{Data: []byte(data), Token: token}
	}
	plain := func(conn net.Conn) net.Conn { return conn }
	other := valuesAt(t, server.Addr(), "/x", plain)
	testbed.OK(t, other.Put(t.Context(), "n", value(1, "first")))
	between, once := make(chan error, 1), new(sync.Once)
	v := valuesAt(t, server.Addr(), "/x", func(conn net.Conn) net.Conn {
		return interjectingConn{conn, once, func() { between <- other.Put(t.Context(), "n", value(3, "highest")) }}
	})
	if err := v.Put(t.Context(), "n", value(2, "late")); !errors.Is(err, interlock.ErrStaleToken) {
		t.Fatalf("the lower one: %v", err)
	}
	testbed.OK(t, testbed.Receive(t, between, "the higher one"))
	if got, err := other.Get(t.Context(), "n"); err != nil || string(got.Data) != "highest" {
		t.Fatalf("%q, %v", got.Data, err)
	}
}
