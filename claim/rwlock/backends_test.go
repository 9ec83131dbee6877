package rwlock_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/consul"   // consul://
	_ "github.com/interlock-dev/interlock/driver/mysql"    // mysql://
	_ "github.com/interlock-dev/interlock/driver/postgres" // postgres://
	"github.com/interlock-dev/interlock/driver/redis"
	_ "github.com/interlock-dev/interlock/driver/zookeeper" // zookeeper://
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// realTTL is the TTL on real systems: a busy machine renews late.
const realTTL = 6 * time.Second

// at returns a server with its own path for each process, which opens the URL of the path's
// address.
func at(server *testbed.Server, url func(addr string) string) rwlocktest.World {
	return paths.At(server, func(t *testing.T, addr string) (driver.Fenced, error) {
		b, err := backend.Open(t.Context(), url(addr))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		return b.Fenced(t.Context(), backend.LockOptions{TTL: realTTL})
	})
}

func TestRedis(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, at(testbed.Redis(t), func(addr string) string { return "redis://" + addr }))
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, at(testbed.Postgres(t), postgresAt))
}

func TestPostgresTable(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, at(testbed.Postgres(t), func(addr string) string { return postgresAt(addr) + "&mode=table" }))
}

func postgresAt(addr string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, at(testbed.ZooKeeper(t), func(addr string) string { return "zookeeper://" + addr }))
}

func TestConsul(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, at(testbed.Consul(t), func(addr string) string { return "consul://" + addr }))
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	for name, mode := range map[string]string{"sessions": "session", "table": "table"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rwlocktest.Run(t, at(server, func(addr string) string { return "mysql://root@" + addr + "/test?mode=" + mode }))
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
