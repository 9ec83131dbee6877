package partition_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/claim/partition/partitiontest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestMoveTimes measures planned moves, for docs/reference/performance.md: it reports only.
// etcd's is in its driver.
func TestMoveTimes(t *testing.T) {
	if os.Getenv("INTERLOCK_BENCH") != "full" {
		t.Skip("it measures: set INTERLOCK_BENCH=full")
	}
	for name, start := range map[string]func(t *testing.T) partitiontest.Opening{
		"redis": func(t *testing.T) partitiontest.Opening {
			server := testbed.Redis(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func()) {
				client := dialRedis(t, server.Addr())
				d, err := redis.Open(t.Context(), client, &redis.Options{TTL: ttl})
				testbed.OK(t, err)
				return d, redis.NewValues(client, ""), client.Close
			}
		},
		"postgres": func(t *testing.T) partitiontest.Opening {
			server := testbed.Postgres(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func()) {
				pool := dialPostgres(t, server.Addr())
				d, err := postgres.Open(t.Context(), pool.Config().ConnConfig, &postgres.Options{TTL: ttl})
				testbed.OK(t, err)
				return d, postgres.NewValues(pool, "layouts"), pool.Close
			}
		},
		"postgres table": func(t *testing.T) partitiontest.Opening {
			server := testbed.Postgres(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func()) {
				pool := dialPostgres(t, server.Addr())
				d, err := postgres.OpenTable(t.Context(), pool, &postgres.TableOptions{TTL: ttl})
				testbed.OK(t, err)
				return d, postgres.NewValues(pool, "layouts"), pool.Close
			}
		},
		"zookeeper": func(t *testing.T) partitiontest.Opening {
			server := testbed.ZooKeeper(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func()) {
				d, err := zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{server.Addr()}, TTL: ttl})
				testbed.OK(t, err)
				conn, events, err := zk.Connect([]string{server.Addr()}, 20*time.Second, zk.WithLogInfo(false), zk.WithDialer(zookeeper.Dialer(ttl, nil)))
				testbed.OK(t, err)
				for e := range events {
					if e.State == zk.StateHasSession {
						break
					}
				}
				return d, zookeeper.NewValues(conn, ""), func() {
					conn.Close()
					for range events {
					}
				}
			}
		},
	} {
		open := start(t)
		for partitions, rounds := range map[int]int{2: 100, 64: 10} {
			t.Run(fmt.Sprint(name, "/", partitions/2, " at once"), func(t *testing.T) { partitiontest.MoveTimes(t, open, partitions, rounds) })
		}
	}
}
