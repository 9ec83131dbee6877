package bench

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func zookeeperCases(tb testing.TB) []benchmark {
	goal := []compare.Goal{faster("zk.Lock", 1)}
	cases := distinct("zookeeper", "one ZooKeeper that syncs to disk; session of 30 s; ", lazily(tb, testbed.ZooKeeper, "-Dzookeeper.forceSync=yes"), zookeeperSides,
		map[int][]compare.Goal{1: goal, 16: goal, 256: goal})
	cases[0].smoke = false // starting Java is slow
	return cases
}

func zookeeperSides(tb testing.TB, server *testbed.Server, l compare.Locks) []compare.Side {
	return []compare.Side{
		l.Side("interlock", fenced(tb, func() (driver.Fenced, error) {
			return zookeeper.Open(tb.Context(), &zookeeper.Options{Servers: []string{server.Addr()}, TTL: ttl})
		})),
		l.Side("zk.Lock", func() compare.Acquire { return zkLock(tb, server) }),
	}
}

// quiet discards the client's log.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

func zkLock(tb testing.TB, server *testbed.Server) compare.Acquire {
	conn, _, err := zk.Connect([]string{server.Addr()}, ttl, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	ok(tb, err)
	tb.Cleanup(conn.Close)
	testbed.Eventually(tb, "the session of zk.Lock", 10*time.Second, func() bool { return conn.State() == zk.StateHasSession })
	return func(_ context.Context, name string) (uint64, compare.Held, error) {
		l := zk.NewLock(conn, "/zk-lock/"+name, zk.WorldACL(zk.PermAll))
		return 0, compare.Release(func(context.Context) error { return l.Unlock() }), l.Lock()
	}
}
