package etcd

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const patience = testbed.Patience

type (
	request = drivertest.Caller
	outcome = drivertest.Outcome
)

var (
	ask, mustAcquire, mustRelease = drivertest.Ask, drivertest.Acquire, drivertest.Release
	begin, queue                  = drivertest.Begin, drivertest.Wait
	bounded                       = testbed.Bounded
)

// counter counts the unary requests of a client.
type counter struct{ n atomic.Int64 }

func (c *counter) on(config *clientv3.Config) {
	intercept(config, func(_ context.Context, _ string, call func() error) error {
		c.n.Add(1)
		return call()
	})
}

// intercept runs do in place of each unary request of a client; call sends it.
func intercept(config *clientv3.Config, do func(ctx context.Context, method string, call func() error) error) {
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return do(ctx, method, func() error { return call(ctx, method, req, reply, cc, opts...) })
		}))
}

// writeFaults drop replies from the first write on: a call that reads before it writes must reach the
// write.
type writeFaults[D comparable] struct {
	*paths.Server[D]
	dropping atomic.Bool
}

func (f *writeFaults[D]) beforeWrites(path *testbed.Proxy) func(*clientv3.Config) {
	return func(config *clientv3.Config) {
		config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				r, ok := req.(*pb.TxnRequest)
				if ok && f.dropping.Load() && slices.ContainsFunc(r.Success, func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil }) {
					path.DropReplies()
				}
				return call(ctx, method, req, reply, cc, opts...)
			}))
	}
}

func (f *writeFaults[D]) DropReplies() { f.dropping.Store(true) }

func (f *writeFaults[D]) Heal() {
	f.dropping.Store(false)
	f.Server.Heal()
}

// watching waits until the watch is open, and every line was read since.
func watching(t testing.TB, d *Driver, s scope) {
	t.Helper()
	d.mu.Lock()
	d.session.watch.need(s)
	d.mu.Unlock()
	testbed.Eventually(t, "the watch is open", patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.session.watch.up && d.session.watch.read == d.session.watch.opened
	})
}

// passed waits until the watch has reported everything up to now.
func passed(t testing.TB, d *Driver, operator *clientv3.Client) {
	t.Helper()
	mustPut(t, operator, d.options.Prefix+"elsewhere", "")
	reply, err := operator.Delete(bounded(t), d.options.Prefix+"elsewhere")
	testbed.OK(t, err)
	testbed.Eventually(t, "the watch reports it", patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.session != nil && d.session.watch.rev >= reply.Header.Revision
	})
}

// fleeting starts a server without durability.
func fleeting(tb testing.TB, extra ...string) *testbed.Server {
	return testbed.Etcd(tb, append(extra, "--unsafe-no-fsync")...)
}

// serverFor returns an empty server without durability, for a test that does not crash it.
// Other tests have used it: its revisions do not begin at 1.
func serverFor(t testing.TB) *testbed.Server {
	t.Helper()
	return testbed.Borrowed(t, fleeting, func(server *testbed.Server) {
		operator := dial(t, server.Addr())
		// Sessions that were not closed may still write to it.
		testbed.Eventually(t, "the server is empty", patience, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			leases, err := operator.Leases(ctx)
			if err != nil {
				return false
			}
			for _, lease := range leases.Leases {
				_, _ = operator.Revoke(ctx, lease.ID) // it may have expired
			}
			deleted, err := operator.Delete(ctx, "\x00", clientv3.WithFromKey())
			return err == nil && deleted.Deleted == 0 && len(leases.Leases) == 0
		})
	})
}

// serverOr is serverFor, or a durable server that the test may crash.
func serverOr(t testing.TB, exclusive bool) *testbed.Server {
	t.Helper()
	if exclusive {
		return testbed.Etcd(t)
	}
	return serverFor(t)
}

func keys(t testing.TB, client *clientv3.Client, prefix string) []string {
	t.Helper()
	reply, err := client.Get(bounded(t), prefix, clientv3.WithPrefix())
	testbed.OK(t, err)
	var all []string
	for _, kv := range reply.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

func mustPut(t testing.TB, client *clientv3.Client, key, value string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	reply, err := client.Put(bounded(t), key, value, opts...)
	testbed.OK(t, err)
	return reply.Header.Revision
}

func mustDelete(t testing.TB, client *clientv3.Client, key string, opts ...clientv3.OpOption) {
	t.Helper()
	_, err := client.Delete(bounded(t), key, opts...)
	testbed.OK(t, err)
}
