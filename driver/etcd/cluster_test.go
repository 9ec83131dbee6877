package etcd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
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
