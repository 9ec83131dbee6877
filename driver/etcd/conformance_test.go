package etcd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) {
	crash.Main(m, map[string]crash.Role{"driver": drive, "shard": pay})
}

const suiteTTL = 3 * time.Second

func TestFenced(t *testing.T) { drivertest.RunFenced(t, harness()) }

func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, harness()) }

func TestBatch(t *testing.T) { drivertest.RunBatch(t, harness()) }

func TestBreaker(t *testing.T) { drivertest.RunBreaker(t, harness()) }

func harness() drivertest.Harness {
	return drivertest.Harness{
		Start:     start,
		TTL:       suiteTTL,
		Heartbeat: paceOf(suiteTTL).heartbeat,
		// etcd checks for expired leases twice a second
		DeadWaiter: suiteTTL + 2*time.Second,
	}
}

// system is a server with its own path for each driver.
type system struct {
	*paths.Server[driver.Fenced]
	operator *clientv3.Client // bypasses the faults of the paths
	watches  map[driver.Fenced]*deafWatcher
}

func start(t *testing.T, exclusive bool) drivertest.Backend {
	server := serverOr(t, exclusive)
	return &system{paths.New[driver.Fenced](server), dial(t, server.Addr()), map[driver.Fenced]*deafWatcher{}}
}

// dial connects a client until the test ends.
func dial(t testing.TB, addr string, options ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	config := clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()}
	for _, o := range options {
		o(&config)
	}
	client, err := clientv3.New(config)
	testbed.OK(t, err)
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return client
}

func open(t testing.TB, client *clientv3.Client, o *Options) *Driver {
	t.Helper()
	d, err := Open(context.Background(), client, o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

func (b *system) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		client := dial(t, path.Addr())
		watch := deafen(client)
		d, err := Open(t.Context(), client, &Options{TTL: suiteTTL, Prefix: "suite/"})
		if err != nil {
			return nil, err
		}
		b.watches[d] = watch
		return d, nil
	})
}

func (b *system) Faults() drivertest.Faults { return b.Server }

func (b *system) DropPushes(_ *testing.T, d driver.Fenced) { b.watches[d].deaf.Store(true) }

func (b *system) Residue(t *testing.T, name string) []string {
	t.Helper()
	line := layout{prefix: "suite/"}.line(name)
	reply, err := b.operator.Get(context.Background(), line, clientv3.WithPrefix())
	testbed.OK(t, err)
	var left []string
	for _, kv := range reply.Kvs {
		left = append(left, fmt.Sprintf("%s = %s", kv.Key, kv.Value))
	}
	return left
}

func (b *system) Delete(t *testing.T, name string) {
	t.Helper()
	line := layout{prefix: "suite/"}.line(name)
	_, err := b.operator.Delete(t.Context(), line, clientv3.WithPrefix())
	testbed.OK(t, err)
}

// deafWatcher drops all messages of watches while it is deaf; requests are
// answered.
type deafWatcher struct {
	clientv3.Watcher
	deaf atomic.Bool
}

// deafen makes a client drop the messages of watches while the result is deaf.
func deafen(client *clientv3.Client) *deafWatcher {
	w := &deafWatcher{Watcher: client.Watcher}
	client.Watcher = w
	return w
}

func (w *deafWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := w.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for reply := range in {
			if w.deaf.Load() {
				continue
			}
			select {
			case out <- reply:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func TestKeyValues(t *testing.T) {
	t.Parallel()
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			return paths.At(serverOr(t, exclusive), func(t *testing.T, addr string) (driver.KeyValues, error) {
				return NewKeyValues(dial(t, addr), "suite/"), nil
			})
		},
	})
}

func TestNotifier(t *testing.T) {
	t.Parallel()
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, _ bool) drivertest.NotifierBackend {
			return paths.At(serverFor(t), func(t *testing.T, addr string) (driver.Notifier, error) {
				return NewNotifier(dial(t, addr), "suite/"), nil
			})
		},
	})
}

// TestShapes: readers and writers, permits and several names on etcd.
func TestShapes(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, paths.At(serverFor(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return Open(t.Context(), dial(t, addr), &Options{TTL: suiteTTL, Prefix: "shapes/"})
	}))
}

func TestCostOfShapes(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), &Options{TTL: time.Minute})
	rwlocktest.Costs(t, d, count.n.Load)
}
