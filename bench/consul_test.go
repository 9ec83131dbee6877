package bench

import (
	"context"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func consulCases(tb testing.TB) []benchmark {
	goal := []compare.Goal{faster("api.Lock", 1)}
	return distinct("consul", "one Consul server that syncs to disk, by HTTP; session of 30 s; ", lazily(tb, testbed.Consul), consulSides,
		map[int][]compare.Goal{1: goal, 16: goal}) // more clients of api.Lock have more connections than an agent accepts
}

// consulSides returns our lock and Consul's own, each with one session.
func consulSides(tb testing.TB, server *testbed.Server, l compare.Locks) []compare.Side {
	return []compare.Side{
		l.Side("interlock", fenced(tb, func() (driver.Fenced, error) {
			return consul.Open(tb.Context(), &consul.Options{Address: server.Addr(), TTL: ttl})
		})),
		l.Side("api.Lock", func() compare.Acquire { return consulLock(tb, server) }),
	}
}

// consulLock returns Consul's own lock. It has no token, and its key stays after the release.
func consulLock(tb testing.TB, server *testbed.Server) compare.Acquire {
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
		if err == nil {
			_, err = l.Lock(ctx.Done())
		}
		return 0, compare.Release(func(context.Context) error { return l.Unlock() }), err
	}
}
