package rwlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// realTTL is that of the real systems' locks.
const realTTL = 3 * time.Second

// led is a server with a path of its own for each process.
func led(server *testbed.Server, open func(t *testing.T, addr string) (driver.Fenced, error)) backend {
	p := paths.New[driver.Fenced](server)
	var mu sync.Mutex // the tests of one server are parallel
	crash := func(t *testing.T, d driver.Fenced) {
		mu.Lock()
		defer mu.Unlock()
		p.Crash(t, d)
	}
	led := map[driver.Fenced]*testbed.Proxy{}
	cut := func(d driver.Fenced) (heal func()) {
		mu.Lock()
		defer mu.Unlock()
		led[d].Cut()
		return led[d].Heal
	}
	return backend{crash: crash, cut: cut, open: func(t *testing.T) driver.Fenced {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		var path *testbed.Proxy
		d, err := p.Lead(t, func(to *testbed.Proxy) (driver.Fenced, error) {
			path = to
			return open(t, to.Addr())
		})
		testbed.OK(t, err)
		led[d] = path
		return d
	}}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	runShapes(t, led(testbed.Redis(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return redis.Open(t.Context(), dialRedis(t, addr), &redis.Options{TTL: realTTL})
	}))
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	runShapes(t, led(testbed.Postgres(t), func(t *testing.T, addr string) (driver.Fenced, error) {
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
	b.slow = true // pgx gives a connection 15 s to close
	runShapes(t, b)
}

func postgresAt(addr string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	runShapes(t, led(testbed.ZooKeeper(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{addr}, TTL: realTTL})
	}))
}

func TestConsul(t *testing.T) {
	t.Parallel()
	runShapes(t, led(testbed.Consul(t), func(t *testing.T, addr string) (driver.Fenced, error) {
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
			runShapes(t, led(server, func(t *testing.T, addr string) (driver.Fenced, error) {
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

// TestCostOnRedis counts what the server was asked.
func TestCostOnRedis(t *testing.T) {
	server := testbed.Redis(t)
	operator := dialRedis(t, server.Addr())
	d, err := redis.Open(t.Context(), dialRedis(t, server.Addr()), nil)
	testbed.OK(t, err)
	defer d.Close(context.Background())
	p := newProcess(t, d)
	for _, c := range []struct {
		what    string
		do      func()
		scripts int
	}{
		{"a read", func() { release(t, must(p.shared.AcquireRead(t.Context(), name))(t)) }, 4},
		{"a write", func() { release(t, must(p.shared.AcquireWrite(t.Context(), name))(t)) }, 3}, // one for the readers
		{"a permit", func() { release(t, must(p.permits.Acquire(t.Context(), name))(t)) }, 4},
		{"three names", func() { release(t, must(p.locks.AcquireAll(t.Context(), []string{"c", "b", "a"}))(t)) }, 4},
	} {
		const rounds = 5
		before, _ := redisCalls(t, operator)
		for range rounds {
			c.do()
		}
		scripts, scans := redisCalls(t, operator)
		if scripts -= before; scripts != rounds*c.scripts || scans > 0 {
			t.Errorf("%s: %d scripts and %d scans in %d rounds, want %d and none", c.what, scripts, scans, rounds, c.scripts)
		}
	}
}

// redisCalls reads the server's own counters.
func redisCalls(t *testing.T, client rueidis.Client) (scripts, scans int) {
	t.Helper()
	text, err := client.Do(t.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	testbed.OK(t, err)
	return countOf(text, "cmdstat_evalsha"), countOf(text, "cmdstat_scan")
}
