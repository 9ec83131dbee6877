package partition_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/partitiontest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// ttl is the TTL of the real systems' locks: a busy machine renews late.
const ttl = 6 * time.Second

func TestRedis(t *testing.T) {
	t.Parallel()
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		server := testbed.Redis(t)
		p := paths.New[driver.Fenced](server)
		fence := redis.NewFence(dialRedis(t, server.Addr()))
		return partitiontest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				var client rueidis.Client
				d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
					client = dialRedis(t, path.Addr())
					return redis.Open(t.Context(), client, &redis.Options{TTL: ttl})
				})
				testbed.OK(t, err)
				return d, redis.NewValues(client, "")
			},
			Crash: p.Crash,
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return fence.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL: ttl,
		}
	})
}

// TestZooKeeper has a guard in memory, since ZooKeeper has none.
func TestZooKeeper(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	var worlds atomic.Int64
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		root := fmt.Sprint("/own-", worlds.Add(1))
		p := paths.New[driver.Fenced](server)
		guard := memory.NewSpace().Fence()
		conn, events, err := zk.Connect([]string{server.Addr()}, 20*time.Second, zk.WithLogInfo(false), zk.WithDialer(zookeeper.Dialer(ttl, nil)))
		testbed.OK(t, err)
		t.Cleanup(func() {
			conn.Close()
			for range events {
			}
		})
		return partitiontest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
					return zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{path.Addr()}, Root: root, TTL: ttl})
				})
				testbed.OK(t, err)
				return d, zookeeper.NewValues(conn, root)
			},
			Crash: p.Crash,
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return guard.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL: ttl,
		}
	})
}

// TestConsul has a guard in memory, since Consul has none.
func TestConsul(t *testing.T) {
	t.Parallel()
	server := testbed.Consul(t)
	var worlds atomic.Int64
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		prefix := fmt.Sprintf("own-%d/", worlds.Add(1))
		p := paths.New[driver.Fenced](server)
		guard := memory.NewSpace().Fence()
		return partitiontest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				var o *consul.Options
				d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
					o = &consul.Options{Address: path.Addr(), Prefix: prefix, TTL: ttl}
					return consul.Open(t.Context(), o)
				})
				testbed.OK(t, err)
				v, err := consul.NewValues(o)
				testbed.OK(t, err)
				t.Cleanup(func() { _ = v.Close(context.Background()) })
				return d, v
			},
			Crash: p.Crash,
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return guard.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL: ttl,
		}
	})
}

// TestIdleMembersOnRedis: idle members cost the server a few requests a second,
// however large its database is.
func TestIdleMembersOnRedis(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dialRedis(t, server.Addr())
	fill := "for i = 1, 100000 do redis.call('SET', 'foreign/' .. i, 'x') end return 1"
	testbed.OK(t, operator.Do(t.Context(), operator.B().Eval().Script(fill).Numkeys(0).Build()).Error())
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
func TestPostgres(t *testing.T) {
	testPostgres(t, func(ctx context.Context, pool *pgxpool.Pool) (driver.Fenced, error) {
		return postgres.Open(ctx, pool.Config().ConnConfig, &postgres.Options{TTL: ttl})
	})
}

func TestPostgresTable(t *testing.T) {
	testPostgres(t, func(ctx context.Context, pool *pgxpool.Pool) (driver.Fenced, error) {
		return postgres.OpenTable(ctx, pool, &postgres.TableOptions{TTL: ttl})
	})
}

func testPostgres(t *testing.T, open func(context.Context, *pgxpool.Pool) (driver.Fenced, error)) {
	t.Parallel()
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		server := testbed.Postgres(t)
		p := paths.New[driver.Fenced](server)
		marks, guard := fence.Table{}, dialPostgres(t, server.Addr())
		testbed.OK(t, pgx.BeginFunc(t.Context(), guard, func(tx pgx.Tx) error { return marks.Create(t.Context(), postgres.Tx(tx)) }))
		return partitiontest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				var pool *pgxpool.Pool
				d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
					pool = dialPostgres(t, path.Addr())
					return open(t.Context(), pool)
				})
				testbed.OK(t, err)
				return d, postgres.NewValues(pool, "layouts")
			},
			Crash: p.Crash,
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return pgx.BeginFunc(ctx, guard, func(tx pgx.Tx) error {
					return marks.Enter(ctx, postgres.Tx(tx), resource, token, source)
				})
			},
			TTL: ttl,
		}
	})
}

// dialPostgres returns a pool that is closed with the test. It closes at once even if its
// connection is cut: pgx would wait for the server.
func dialPostgres(t *testing.T, addr string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig("postgres://postgres@" + addr + "/postgres?sslmode=disable&pool_max_conns=8")
	testbed.OK(t, err)
	var conns sync.Map
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			conns.Store(conn, nil)
		}
		return conn, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testbed.OK(t, err)
	t.Cleanup(func() {
		conns.Range(func(conn, _ any) bool {
			_ = conn.(net.Conn).Close() // perhaps already closed
			return true
		})
		pool.Close()
	})
	return pool
}

func dialRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := redis.Dial("redis://" + addr)
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	return client
}
