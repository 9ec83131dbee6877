package partition_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/partitiontest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	_ "github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// ttl is the TTL of the real systems' locks: a busy machine renews late.
const ttl = 6 * time.Second

// worldOf returns a world whose members open the URL of an address, each over its own path to the
// server.
func worldOf(server *testbed.Server, url func(addr string) string, enter func(ctx context.Context, resource string, token interlock.Token, source string) error) partitiontest.World {
	var values driver.Values // of the member that was opened last
	p := paths.At(server, func(t *testing.T, addr string) (driver.Fenced, error) {
		b, err := backend.Open(t.Context(), url(addr))
		testbed.OK(t, err)
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		values, err = b.Values(t.Context(), "")
		testbed.OK(t, err)
		return b.Fenced(t.Context(), backend.LockOptions{TTL: ttl})
	})
	return partitiontest.World{Crash: p.Crash, Enter: enter, TTL: ttl, Open: func(t *testing.T) (driver.Fenced, driver.Values) {
		d, err := p.Open(t)
		testbed.OK(t, err)
		return d, values
	}}
}

// entering returns how to enter a guard.
func entering(f driver.Fence) func(context.Context, string, interlock.Token, string) error {
	return func(ctx context.Context, resource string, token interlock.Token, source string) error {
		return f.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		server := testbed.Redis(t)
		return worldOf(server, func(addr string) string { return "redis://" + addr }, entering(redis.NewFence(dialRedis(t, server.Addr()))))
	})
}

// TestZooKeeper has a guard in memory, since ZooKeeper has none.
func TestZooKeeper(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	var worlds atomic.Int64
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		root := fmt.Sprint("/own-", worlds.Add(1))
		return worldOf(server, func(addr string) string { return "zookeeper://" + addr + root }, entering(memory.NewSpace().Fence()))
	})
}

// TestConsul has a guard in memory, since Consul has none.
func TestConsul(t *testing.T) {
	t.Parallel()
	server := testbed.Consul(t)
	var worlds atomic.Int64
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		prefix := fmt.Sprintf("?prefix=own-%d/", worlds.Add(1))
		return worldOf(server, func(addr string) string { return "consul://" + addr + prefix }, entering(memory.NewSpace().Fence()))
	})
}

// TestIdleMembersOnRedis: idle members cost the server a few requests a second,
// however large its database is.
func TestIdleMembersOnRedis(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dialRedis(t, server.Addr())
	fill := "for i = 1, 1000 do redis.call('SET', 'foreign/' .. ARGV[1] .. i, 'x') end return 1"
	for part := range 100 {
		testbed.OK(t, operator.Do(t.Context(), operator.B().Eval().Script(fill).Numkeys(0).Arg(fmt.Sprint(part, "/")).Build()).Error())
	}
	const members, partitions = 3, 12
	owned := func() (n int) { return 0 }
	for i := range members {
		client := dialRedis(t, server.Addr())
		d, err := redis.Open(t.Context(), client, &redis.Options{TTL: ttl})
		testbed.OK(t, err)
		g, err := partition.Join(t.Context(), d, redis.NewValues(client, ""), "idle", partition.Layout{Partitions: partitions},
			&partition.Options{Identity: fmt.Sprint("member-", i)})
		testbed.OK(t, err)
		t.Cleanup(func() {
			if err := errors.Join(g.Leave(context.Background()), d.Close(context.Background())); err != nil {
				t.Error(err)
			}
		})
		before := owned
		owned = func() int { return before() + len(g.Owned()) }
	}
	testbed.Eventually(t, "every partition has an owner", 30*time.Second, func() bool { return owned() == partitions })
	scripts, scans, began := redisCount(t, operator, "evalsha"), redisCount(t, operator, "scan"), time.Now()
	testbed.Eventually(t, "two TTLs pass", 30*time.Second, func() bool { return time.Since(began) > 2*ttl })
	scripts, scans = redisCount(t, operator, "evalsha")-scripts, redisCount(t, operator, "scan")-scans
	perSecond := float64(scripts) / time.Since(began).Seconds()
	t.Logf("%.1f requests a second for %d idle members", perSecond, members)
	// Every third of the TTL: a renewal, and a read of the index and of the keys in it.
	if most := 10.0 * members; scans > 0 || perSecond > most {
		t.Errorf("%d scans, and %.1f requests a second for %d idle members, want none and at most %.0f", scans, perSecond, members, most)
	}
}

// redisCount reads the server's own counter of a command.
func redisCount(t *testing.T, client rueidis.Client, command string) (n int) {
	t.Helper()
	text, err := client.Do(t.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	testbed.OK(t, err)
	if _, rest, ok := strings.Cut(text, "cmdstat_"+command+":calls="); ok {
		_, err := fmt.Sscanf(rest, "%d", &n)
		testbed.OK(t, err)
	}
	return n
}

// TestPostgres keeps the locks in sessions, TestPostgresTable in rows; the guard is
// a table of the same database.
func TestPostgres(t *testing.T) { testPostgres(t, "") }

func TestPostgresTable(t *testing.T) { testPostgres(t, "&mode=table") }

func testPostgres(t *testing.T, setting string) {
	t.Parallel()
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		server := testbed.Postgres(t)
		pool, err := pgxpool.New(t.Context(), server.URL())
		testbed.OK(t, err)
		t.Cleanup(pool.Close)
		marks := fence.Table{}
		testbed.OK(t, postgres.Create(t.Context(), pool, marks))
		url := func(addr string) string {
			return "postgres://postgres@" + addr + "/postgres?sslmode=disable&pool_max_conns=8" + setting
		}
		return worldOf(server, url, func(ctx context.Context, resource string, token interlock.Token, source string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return marks.Enter(ctx, postgres.Tx(tx), resource, token, source)
			})
		})
	})
}

func dialRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := redis.Dial("redis://" + addr)
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestMoveTimes measures planned moves, for docs/reference/performance.md: it reports only.
// etcd's is in its driver.
func TestMoveTimes(t *testing.T) {
	if os.Getenv("INTERLOCK_BENCH") != "full" {
		t.Skip("it measures: set INTERLOCK_BENCH=full")
	}
	for name, start := range map[string]func() string{
		"redis":          func() string { return "redis://" + testbed.Redis(t).Addr() },
		"postgres":       func() string { return testbed.Postgres(t).URL() },
		"postgres table": func() string { return testbed.Postgres(t).URL() + "&mode=table" },
		"zookeeper":      func() string { return "zookeeper://" + testbed.ZooKeeper(t).Addr() },
	} {
		url := start()
		open := func(t *testing.T) (driver.Fenced, driver.Values, func()) {
			b, err := backend.Open(t.Context(), url)
			testbed.OK(t, err)
			d, err := b.Fenced(t.Context(), backend.LockOptions{TTL: ttl})
			testbed.OK(t, err)
			v, err := b.Values(t.Context(), "")
			testbed.OK(t, err)
			return d, v, func() { _ = b.Close(context.Background()) }
		}
		for partitions, rounds := range map[int]int{2: 100, 64: 10} {
			t.Run(fmt.Sprint(name, "/", partitions/2, " at once"), func(t *testing.T) { partitiontest.MoveTimes(t, open, partitions, rounds) })
		}
	}
}
