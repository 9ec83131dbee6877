package etcd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const suiteTTL = 3 * time.Second

func TestFenced(t *testing.T) {
	drivertest.RunFenced(t, drivertest.Harness{
		Start:     start,
		TTL:       suiteTTL,
		Heartbeat: paceOf(suiteTTL).heartbeat,
		// etcd looks for expired leases twice a second
		DeadWaiter: suiteTTL + 2*time.Second,
	})
}

// backend is a server, and a path of its own for each driver.
type backend struct {
	server   *testbed.Server
	operator *clientv3.Client // past every fault of the paths
	paths    map[driver.Fenced]*path
	outage   bool
}

// path leads one driver to the server.
type path struct {
	*testbed.Proxy
	watch *deafWatcher
}

func start(t *testing.T, exclusive bool) drivertest.Backend {
	var extra []string
	if !exclusive {
		extra = append(extra, "--unsafe-no-fsync")
	}
	server := testbed.Etcd(t, extra...)
	return &backend{server: server, operator: dial(t, server.Addr()), paths: map[driver.Fenced]*path{}}
}

// dial connects a client for the time of the test.
func dial(t testing.TB, addr string, options ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	config := clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()}
	for _, o := range options {
		o(&config)
	}
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, d)
	return d
}

func closeAfter(t testing.TB, d driver.Fenced) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func (b *backend) Open(t *testing.T) (driver.Fenced, error) {
	p := &path{Proxy: testbed.NewProxy(t, b.server.Addr())}
	client := dial(t, p.Addr())
	p.watch = &deafWatcher{Watcher: client.Watcher}
	client.Watcher = p.watch
	if b.outage {
		p.Cut()
	}
	d, err := Open(t.Context(), client, &Options{TTL: suiteTTL, Prefix: "suite/"})
	if err != nil {
		return nil, err
	}
	closeAfter(t, d)
	b.paths[d] = p
	return d, nil
}

func (b *backend) Crash(_ *testing.T, d driver.Fenced) { b.paths[d].Cut() }

func (b *backend) DropPushes(_ *testing.T, d driver.Fenced) { b.paths[d].watch.deaf.Store(true) }

func (b *backend) Residue(t *testing.T, name string) []string {
	t.Helper()
	line := layout{prefix: "suite/"}.line(name)
	reply, err := b.operator.Get(context.Background(), line, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, kv := range reply.Kvs {
		left = append(left, fmt.Sprintf("%s = %s", kv.Key, kv.Value))
	}
	return left
}

func (b *backend) Delete(t *testing.T, name string) {
	t.Helper()
	line := layout{prefix: "suite/"}.line(name)
	if _, err := b.operator.Delete(t.Context(), line, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

func (b *backend) Faults() drivertest.Faults { return faults{b} }

// faults of the server, and of all paths to it.
type faults struct{ *backend }

func (f faults) Kill()        { f.outage = true; f.server.Kill() }
func (f faults) Restart()     { f.server.Restart(); f.over() }
func (f faults) Wipe()        { f.server.Wipe() }
func (f faults) Pause()       { f.outage = true; f.server.Pause() }
func (f faults) Resume()      { f.server.Resume(); f.over() }
func (f faults) Cut()         { f.outage = true; f.each((*testbed.Proxy).Cut) }
func (f faults) Heal()        { f.over() }
func (f faults) DropReplies() { f.each((*testbed.Proxy).DropReplies) }

func (f faults) Delay(oneWay time.Duration) {
	f.each(func(p *testbed.Proxy) { p.Delay(oneWay) })
}

func (f faults) over() {
	f.outage = false
	f.each((*testbed.Proxy).Heal)
}

func (f faults) each(do func(*testbed.Proxy)) {
	for _, p := range f.paths {
		do(p.Proxy)
	}
}

// deafWatcher loses everything that watches say once it is deaf, while requests
// are answered.
type deafWatcher struct {
	clientv3.Watcher
	deaf atomic.Bool
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
