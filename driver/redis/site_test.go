package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// site is where one test of a suite runs: a server, or a cluster that tests share.
type site struct {
	server  paths.Breakable
	more    []string // the addresses of a cluster's other servers
	cluster bool
	// prefix begins the names of the test, and tag, if it is not empty, those that have
	// to be in one hash slot. Both are empty where the test is alone.
	prefix, tag string
}

// sites gives a test its site: one of its own, if it breaks the servers themselves.
type sites func(t *testing.T, exclusive bool) site

// alone gives each test a server of its own.
func alone(extra ...string) sites {
	return func(t *testing.T, _ bool) site { return site{server: testbed.Redis(t, extra...)} }
}

// durable is alone on a server that loses nothing by a crash.
var durable = alone("--appendonly", "yes", "--appendfsync", "always")

var siteNumber atomic.Int64

// clusters starts a cluster that tests share, and one that loses nothing by a crash, for
// those that break it, one after the other.
func clusters(t *testing.T) sites {
	shared := testbed.RedisCluster(t, false)
	for _, addr := range shared.Addrs() {
		for _, s := range suiteScripts {
			known := []*script{s}
			if s.whole != nil {
				known = append(known, s.whole)
			}
			if err := newConn(dial(t, addr)).load(t.Context(), known...); err != nil {
				t.Fatal(err)
			}
		}
	}
	broken := testbed.RedisCluster(t, false, "--appendonly", "yes", "--appendfsync", "always")
	var turn sync.Mutex
	return func(t *testing.T, exclusive bool) site {
		c := shared
		if exclusive {
			c = broken
			turn.Lock()
			t.Cleanup(func() {
				defer turn.Unlock()
				if t.Failed() {
					c.Restart()
				}
			})
		}
		name := fmt.Sprintf("site%d", siteNumber.Add(1))
		return site{server: c, more: c.Addrs()[1:], cluster: true, prefix: name + "/", tag: "{" + name + "}"}
	}
}

// tagged puts all names of a test into one hash slot.
func (in sites) tagged() sites {
	return func(t *testing.T, exclusive bool) site {
		at := in(t, exclusive)
		at.prefix = at.tag
		return at
	}
}

// led is the site with a path of its own for each D.
func led[D comparable](at site) *paths.Server[D] { return paths.New[D](at.server, at.more...) }

// through connects by a path, for the time of the test.
func (at site) through(t testing.TB, path *testbed.Proxy) (rueidis.Client, error) {
	if !at.cluster {
		client, err := Dial("redis://" + path.Addr())
		if err == nil {
			t.Cleanup(client.Close)
		}
		return client, err
	}
	option, _, err := clientOption("redis://" + at.server.Addr() + "?cluster=true")
	if err != nil {
		return nil, err
	}
	option.DialCtxFn = func(ctx context.Context, target string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", path.Route(target))
	}
	client, err := rueidis.NewClient(option)
	if client != nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

// dialed is through that must succeed.
func (at site) dialed(t testing.TB, path *testbed.Proxy) rueidis.Client {
	t.Helper()
	client, err := at.through(t, path)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// beside connects past every path.
func (at site) beside(t testing.TB) rueidis.Client {
	t.Helper()
	url := "redis://" + at.server.Addr()
	if at.cluster {
		url += "?cluster=true"
	}
	client, err := Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}
