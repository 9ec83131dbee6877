package rwlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// realTTL is the TTL on real systems.
const realTTL = 3 * time.Second

// led returns a server with its own path for each process.
func led(server *testbed.Server, open func(t *testing.T, addr string) (driver.Fenced, error)) rwlocktest.World {
	p, to := paths.New[driver.Fenced](server), map[driver.Fenced]*testbed.Proxy{}
	return rwlocktest.World{TTL: realTTL, Crash: p.Crash,
		Cut: func(d driver.Fenced) (heal func()) {
			to[d].Cut()
			return to[d].Heal
		},
		Open: func(t *testing.T) driver.Fenced {
			t.Helper()
			var path *testbed.Proxy
			d, err := p.Lead(t, func(new *testbed.Proxy) (driver.Fenced, error) {
				path = new
				return open(t, path.Addr())
			})
			testbed.OK(t, err)
			to[d] = path
			return d
		}}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, led(testbed.Redis(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return redis.Open(t.Context(), dialRedis(t, addr), &redis.Options{TTL: realTTL})
	}))
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, led(testbed.Postgres(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		config, err := pgx.ParseConfig(postgresAt(addr))
		if err != nil {
			return nil, err
		}
		return postgres.Open(t.Context(), config, &postgres.Options{TTL: realTTL})
	}))
}

func TestPostgresTable(t *testing.T) {
	t.Parallel()
	b := led(testbed.Postgres(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		pool, err := pgxpool.New(t.Context(), postgresAt(addr))
		if err != nil {
			return nil, err
		}
		t.Cleanup(pool.Close)
		return postgres.OpenTable(t.Context(), pool, &postgres.TableOptions{TTL: realTTL})
	})
	b.Slow = true // pgx gives a connection 15 s to close
	rwlocktest.Run(t, b)
}

func postgresAt(addr string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, led(testbed.ZooKeeper(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{addr}, TTL: realTTL})
	}))
}

func TestConsul(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, led(testbed.Consul(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return consul.Open(t.Context(), &consul.Options{Address: addr, TTL: realTTL})
	}))
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	for mode, open := range map[string]func(*testing.T, *client.Config) (driver.Fenced, error){
		"sessions": func(t *testing.T, c *client.Config) (driver.Fenced, error) {
			return mysql.Open(t.Context(), c, &mysql.Options{TTL: realTTL})
		},
		"table": func(t *testing.T, c *client.Config) (driver.Fenced, error) {
			connector, err := client.NewConnector(c)
			if err != nil {
				return nil, err
			}
			db := sql.OpenDB(connector)
			t.Cleanup(func() { _ = db.Close() })
			return mysql.OpenTable(t.Context(), db, &mysql.Options{TTL: realTTL})
		},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			rwlocktest.Run(t, led(server, func(t *testing.T, addr string) (driver.Fenced, error) {
				config, err := client.ParseDSN("root@tcp(" + addr + ")/test?interpolateParams=true")
				if err != nil {
					return nil, err
				}
				config.Logger = &client.NopLogger{}
				return open(t, config)
			}))
		})
	}
}

func dialRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := redis.Dial("redis://" + addr)
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestCostOnRedis counts the requests to the server.
func TestCostOnRedis(t *testing.T) {
	server := testbed.Redis(t)
	operator := dialRedis(t, server.Addr())
	d, err := redis.Open(t.Context(), dialRedis(t, server.Addr()), nil)
	testbed.OK(t, err)
	defer d.Close(context.Background())
	rwlocktest.Costs(t, d, func() int64 { return redisCalls(t, operator) })
}

// redisCalls counts the scripts and scans that the server has run.
func redisCalls(t *testing.T, client rueidis.Client) (n int64) {
	t.Helper()
	text, err := client.Do(t.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	testbed.OK(t, err)
	for _, command := range []string{"cmdstat_evalsha", "cmdstat_scan"} {
		_, rest, _ := strings.Cut(text, command+":calls=")
		digits, _, _ := strings.Cut(rest, ",")
		calls, _ := strconv.ParseInt(digits, 10, 64)
		n += calls
	}
	return n
}
