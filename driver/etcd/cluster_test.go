package etcd

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect/electtest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// TestClaimsSurviveTheLeader of three members.
func TestClaimsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	e := testbed.EtcdCluster(t, 3, "--unsafe-no-fsync")
	everywhere := func(c *clientv3.Config) { c.Endpoints = e.Addrs() }
	var competing []driver.Fenced
	for range 2 {
		competing = append(competing, open(t, dial(t, "", everywhere), &Options{TTL: 5 * time.Second}))
	}
	drivertest.LeaderLoss(t, competing, open(t, dial(t, "", everywhere), nil), func() {
		leader := e.Leader()
		leader.Kill()
		if e.Leader() == leader {
			t.Fatal("the killed member leads")
		}
	}, func() {})
}

// TestMemberWithoutALeader refuses requests before it proposes them.
func TestMemberWithoutALeader(t *testing.T) {
	t.Parallel()
	e := testbed.EtcdCluster(t, 3, "--unsafe-no-fsync")
	alone, others := e.Peers[0], e.Peers[1:]
	operator := dial(t, alone.Addr())
	d := open(t, operator, nil)
	held, r := ask("held", "me"), ask("n", "me")
	mustAcquire(t, d, held)
	for _, other := range others {
		other.Pause()
	}
	testbed.Eventually(t, "it has no leader", patience, func() bool {
		status, err := operator.Status(bounded(t), alone.Addr())
		return err == nil && status.Leader == 0
	})
	r.NoWait = true
	_, acquired := d.Acquire(bounded(t), r.Request)
	for op, err := range map[string]error{"acquire": acquired, "release": d.Release(bounded(t), held.Name, held.Owner)} {
		if interlock.Kind(err) != interlock.Retryable || !errors.Is(err, rpctypes.ErrNoLeader) {
			t.Errorf("%s: %v", op, err)
		}
	}
	for _, other := range others {
		other.Resume()
	}
	testbed.Eventually(t, "the release is repeated", patience, func() bool { return len(keys(t, operator, "held/")) == 0 })
	if left := keys(t, operator, "n/"); len(left) > 0 {
		t.Errorf("a refused request wrote %q", left)
	}
}

// TestOpenBesideASilentMember: the first request of each kind goes to a member that does not answer.
func TestOpenBesideASilentMember(t *testing.T) {
	t.Parallel()
	var sent sync.Map
	open(t, dial(t, serverFor(t).Addr(), func(config *clientv3.Config) {
		intercept(config, func(ctx context.Context, method string, call func() error) error {
			if _, again := sent.LoadOrStore(method, true); again || method == pb.KV_Txn_FullMethodName {
				return call()
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}), &Options{TTL: 2 * time.Second})
}

// TestOutagesLeaveNoCandidateBehind on etcd.
func TestOutagesLeaveNoCandidateBehind(t *testing.T) {
	t.Parallel()
	p := paths.New[driver.Fenced](testbed.Etcd(t))
	const outage = suiteTTL + time.Second
	electtest.Outages(t, electtest.World{
		Open: func(t *testing.T) (driver.Fenced, driver.Values) {
			var client *clientv3.Client
			d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
				client = dial(t, path.Addr())
				return Open(t.Context(), client, &Options{TTL: suiteTTL})
			})
			testbed.OK(t, err)
			return d, NewValues(client, "values/")
		},
		Faults: map[string]func(){
			"a partition":    func() { p.Cut(); time.Sleep(outage); p.Heal() },
			"lost replies":   func() { p.DropReplies(); time.Sleep(outage); p.Heal() },
			"a stopped one":  func() { p.Pause(); time.Sleep(outage); p.Resume() },
			"a short outage": func() { p.Kill(); p.Restart() },
		},
	})
}

// TestOpeningEndsWithItsContext, also while the authentication is not answered.
func TestOpeningEndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp4", "127.0.0.1:0")
	testbed.OK(t, err)
	defer silent.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		for n := 1; ; n++ {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if n == 2 { // the first one is that of a check
				cancel(enough)
			}
		}
	}()
	opened := make(chan error, 1)
	go func() {
		_, err := backend.Open(ctx, "etcd://root:pw@"+silent.Addr().String())
		opened <- err
	}()
	if err := testbed.Receive(t, opened, "the end of Open"); !errors.Is(err, enough) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("an etcd that does not answer: %v", err)
	}
}

// TestSilentConnectionIsClosed by a client that was opened from a URL: until then it sends requests there.
func TestSilentConnectionIsClosed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		u, err := backend.Parse("etcd://silent:2379")
		testbed.OK(t, err)
		cfg := config(t.Context(), u, nil)
		cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			client, server := net.Pipe()
			go server.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // empty SETTINGS of HTTP/2
			go io.Copy(io.Discard, server)
			return client, nil
		})}
		client, err := clientv3.New(cfg)
		testbed.OK(t, err)
		go client.Get(t.Context(), "x") // gRPC pings only while a request is under way
		synctest.Wait()
		conn, began := client.ActiveConnection(), time.Now()
		conn.WaitForStateChange(testbed.Bounded(t), connectivity.Ready)
		if took := time.Since(began); took != keepAliveTime+keepAliveTimeout {
			t.Errorf("it is closed after %v", took)
		}
		testbed.OK(t, client.Close())
	})
}
