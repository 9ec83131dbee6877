package own_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/own/owntest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// ttl is that of the real systems' locks.
const ttl = 3 * time.Second

// planned is the longest that a planned move may take. Alone it is a few
// milliseconds; the race detector and the tests beside this one cost the rest.
const planned = 250 * time.Millisecond

func TestRedis(t *testing.T) {
	owntest.Run(t, nil, func(t *testing.T) owntest.World {
		server := testbed.Redis(t)
		p := paths.New[driver.Fenced](server)
		fence := redis.NewFence(dialRedis(t, server.Addr()))
		return owntest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				var client rueidis.Client
				d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
					client = dialRedis(t, path.Addr())
					return redis.Open(t.Context(), client, &redis.Options{TTL: ttl})
				})
				if err != nil {
					t.Fatal(err)
				}
				return d, redis.NewValues(client, "")
			},
			Crash: p.Crash,
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return fence.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL:  ttl,
			Move: planned,
		}
	})
}

func dialRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := redis.Dial("redis://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}
