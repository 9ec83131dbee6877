package zookeeper

import (
	"context"
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

// DropReplies waits for a write: before it is a read, whose loss would show.
func (b *valuesBackend) DropReplies() { b.armed.Store(true) }

func (b *valuesBackend) Open(t *testing.T) (driver.Values, error) {
	return b.Lead(t, func(path *testbed.Proxy) (*Values, error) {
		return valuesAt(t, path.Addr(), b.root, func(op uint32, _ []byte) {
			if (op == opCreate || op == opSetData) && b.armed.CompareAndSwap(true, false) {
				path.DropReplies()
			}
		}), nil
	})
}

func (b *valuesBackend) Beside(t *testing.T) (driver.Values, error) {
	return valuesAt(t, b.server.Addr(), b.root, nil), nil
}

func (b *valuesBackend) Faults() drivertest.Faults { return b }

// Operations of the protocol.
const opCreate, opGetData, opSetData, opGetChildren = 1, 4, 5, 12

// valuesAt connects, as far as the path allows. sending is that of a tap.
func valuesAt(t *testing.T, addr, root string, sending func(op uint32, body []byte)) *Values {
	t.Helper()
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		return &tap{Conn: conn, sending: sending}, nil
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

// TestValueIsWrittenOverWhatWasRead: a value written after the read is not overwritten under a
// lower token.
func TestValueIsWrittenOverWhatWasRead(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	now := interlock.CounterAt(time.Now())
	value := func(ahead int64, data string) driver.Value {
		token, err := interlock.NewToken(now+ahead, 0)
		testbed.OK(t, err)
		return driver.Value{Data: []byte(data), Token: token}
	}
	other := valuesAt(t, server.Addr(), "/x", nil)
	testbed.OK(t, other.Put(t.Context(), "n", value(1, "first")))
	between := make(chan error, 1)
	var once sync.Once
	v := valuesAt(t, server.Addr(), "/x", func(op uint32, _ []byte) {
		if op == opSetData {
			once.Do(func() { between <- other.Put(t.Context(), "n", value(3, "highest")) })
		}
	})
	if err := v.Put(t.Context(), "n", value(2, "late")); !errors.Is(err, interlock.ErrStaleToken) {
		t.Fatalf("the lower one: %v", err)
	}
	testbed.OK(t, testbed.Receive(t, between, "the higher one"))
	if got, err := other.Get(t.Context(), "n"); err != nil || string(got.Data) != "highest" {
		t.Fatalf("%q, %v", got.Data, err)
	}
}

// TestCallsOfWatchShareAWatch: the client cannot remove one before the value changes, so calls that have
// ended would leave theirs. Each call receives the change.
func TestCallsOfWatchShareAWatch(t *testing.T) {
	t.Parallel()
	const opExists = 3
	server := borrow(t)
	var watches atomic.Int64
	v := valuesAt(t, server.Addr(), "/x", func(op uint32, body []byte) {
		if (op == opGetData || op == opExists) && body[len(body)-1] == 1 {
			watches.Add(1)
		}
	})
	token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
	testbed.OK(t, err)
	put := func(data string) {
		testbed.OK(t, v.Put(t.Context(), "n", driver.Value{Data: []byte(data), Token: token}))
	}
	put("before")
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := v.Watch(ctx, "n", func(driver.Value) { cancel() }); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if n := watches.Load(); n != 1 {
		t.Errorf("%d watches for five calls", n)
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan string, 20)
	for range 3 {
		calls.Go(func() { _ = v.Watch(ctx, "n", func(value driver.Value) { seen <- string(value.Data) }) })
	}
	for _, data := range []string{"before", "after", "last"} {
		if data != "before" {
			put(data)
		}
		for range 3 {
			if got := testbed.Receive(t, seen, data); got != data {
				t.Fatalf("%q is reported, want %q", got, data)
			}
		}
	}
}

// TestQuotaIsDefinite: a write beyond a quota is refused before it takes effect.
func TestQuotaIsDefinite(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t, "-Dzookeeper.enforceQuota=true")
	v := valuesAt(t, server.Addr(), "/x", nil)
	token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
	testbed.OK(t, err)
	value := driver.Value{Data: []byte("small"), Token: token}
	testbed.OK(t, v.Put(t.Context(), "n", value))
	for _, node := range [][2]string{{"", ""}, {"/zookeeper_limits", "count=-1,bytes=-1;byteHardLimit=1000;countHardLimit=-1"}, {"/zookeeper_stats", "count=0,bytes=0"}} {
		_, err := v.conn.Create("/zookeeper/quota/x"+node[0], []byte(node[1]), zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		testbed.OK(t, err)
	}
	value.Data = make([]byte, 2000)
	if err := v.Put(t.Context(), "n", value); err == nil || interlock.Kind(err) != interlock.Definite {
		t.Errorf("beyond the quota: %v (%v)", err, interlock.Kind(err))
	}
}
