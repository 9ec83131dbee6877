package bench

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredisclient "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// compareAndDelete releases a lock on SET NX.
var compareAndDelete = rueidis.NewLuaScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0`)

// rawPair makes the minimum of a lock with an owner: two round trips. Its client writes and reads in
// goroutines of its own, as it does in a program from the first call on that is concurrent with another
// one, or whose context can be cancelled and has no deadline.
func rawPair(tb testing.TB, client rueidis.Client) compare.Acquire {
	ok(tb, client.Do(tb.Context(), client.B().Ping().Build()).Error())
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		owner := strconv.FormatInt(fresh.Add(1), 16)
		set := client.B().Set().Key(name).Value(owner).Nx().Px(ttl).Build()
		if err := client.Do(ctx, set).Error(); err != nil {
			return 0, nil, err
		}
		return 0, compare.Release(func(ctx context.Context) error {
			return compareAndDelete.Exec(ctx, client, []string{name}, []string{owner}).Error()
		}), nil
	}
}

// tokens measures the limit of a contended lock: the server pushes the token to the client that has
// waited longest. It is not a lock, because it is lost with its holder.
func tokens(client rueidis.Client) compare.Acquire {
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		made, err := client.Do(ctx, client.B().Setnx().Key(name+"-made").Value("1").Build()).AsBool()
		if err != nil {
			return 0, nil, err
		}
		if !made {
			if err := client.Do(ctx, client.B().Blpop().Key(name).Timeout(0).Build()).Error(); err != nil {
				return 0, nil, err
			}
		}
		return 0, compare.Release(func(ctx context.Context) error {
			return client.Do(ctx, client.B().Rpush().Key(name).Element("1").Build()).Error()
		}), nil
	}
}

func rueidisLock(tb testing.TB, server *testbed.Server) compare.Acquire {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, KeyMajority: 1, NoLoopTracking: true,
		KeyValidity: ttl, ExtendInterval: ttl / 3,
	})
	ok(tb, err)
	tb.Cleanup(locker.Close)
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		_, release, err := locker.WithContext(ctx, name)
		return 0, compare.Release(func(context.Context) error { release(); return nil }), err
	}
}

func goRedis(tb testing.TB, server *testbed.Server) *goredisclient.Client {
	client := goredisclient.NewClient(&goredisclient.Options{Addr: server.Addr()})
	tb.Cleanup(func() { ok(tb, client.Close()) })
	return client
}

func every2ms() redislock.RetryStrategy { return redislock.LinearBackoff(2 * time.Millisecond) }

func exponential() redislock.RetryStrategy {
	return redislock.ExponentialBackoff(time.Millisecond, 64*time.Millisecond)
}

func redisLock(tb testing.TB, server *testbed.Server, retry func() redislock.RetryStrategy) compare.Acquire {
	client := redislock.New(goRedis(tb, server))
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		l, err := client.Obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: retry()})
		if err != nil {
			return 0, nil, err
		}
		return 0, l, nil
	}
}

// redSync has its own delays between attempts, of 50 ms to 250 ms, and unlimited attempts.
func redSync(tb testing.TB, ttl time.Duration, servers ...*testbed.Server) compare.Acquire {
	var pools []redsyncredis.Pool
	for _, s := range servers {
		pools = append(pools, goredis.NewPool(goRedis(tb, s)))
	}
	locks := redsync.New(pools...)
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		m := locks.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
		return 0, compare.Release(func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }), m.LockContext(ctx)
	}
}
