package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
