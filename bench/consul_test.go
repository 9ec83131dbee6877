package bench

import (
	"context"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func consulCases(tb testing.TB) []benchmark {
	server := sync.OnceValue(func() *testbed.Server { return testbed.Consul(tb) })
	goal := []compare.Goal{faster("api.Lock", 1)}
	return distinct("consul", "one Consul server that syncs to disk, by HTTP; session of 30 s; ", server, consulSides,
		map[int][]compare.Goal{1: goal, 16: goal}) // more clients of api.Lock have more connections than an agent accepts
}

// consulSides returns our lock and Consul's own, each with one session.
func consulSides(tb testing.TB, server *testbed.Server, c contest) []compare.Side {
	return []compare.Side{
		c.side("interlock", func() acquire {
			d, err := consul.Open(tb.Context(), &consul.Options{Address: server.Addr(), TTL: ttl})
			ok(tb, err)
			return fenced(tb, d)
		}, nil),
		c.side("api.Lock", func() acquire { return consulLock(tb, server) }, nil),
	}
}

// consulLock returns Consul's own lock. It has no token, and its key stays after the release.
func consulLock(tb testing.TB, server *testbed.Server) acquire {
	client, err := api.NewClient(&api.Config{Address: server.Addr()})
	ok(tb, err)
	session, _, err := client.Session().CreateNoChecks(&api.SessionEntry{TTL: ttl.String(), Behavior: api.SessionBehaviorDelete}, nil)
	ok(tb, err)
	done := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() { _ = client.Session().RenewPeriodic(ttl.String(), session, nil, done) })
	tb.Cleanup(func() { close(done); renewing.Wait() })
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		l, err := client.LockOpts(&api.LockOptions{Key: "api-lock/" + name, Session: session})
		if err != nil {
			return 0, nil, err
		}
		if _, err := l.Lock(ctx.Done()); err != nil {
			return 0, nil, err
		}
		return 0, compare.Release(func(context.Context) error { return l.Unlock() }), nil
	}
}
