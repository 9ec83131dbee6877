package guarantees

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/kube"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// system is one backend of the page.
type system struct {
	// set are the server's arguments for durability, found the default ones; both are
	// equal if there is no choice.
	found, set []string
	server     func(testing.TB, ...string) *testbed.Server
	// open connects to the server, or to a proxy of it.
	open func(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error)
	// values and fence: the backend has such a store. sql: a guard can join the user's
	// transactions. rows: it can lock rows.
	values, fence, sql bool
}

var (
	durableRedis    = []string{"--appendonly", "yes", "--appendfsync", "always"}
	durablePostgres = []string{"-c", "fsync=on"}
	fastEtcd        = []string{"--unsafe-no-fsync"}
	weakMariaDB     = []string{"--innodb-flush-log-at-trx-commit=2"}
)

// systems are the systems with one server.
var systems = map[string]system{
	"redis":       {set: durableRedis, server: testbed.Redis, open: openRedis, values: true, fence: true},
	"redis-plain": {set: durableRedis, server: testbed.Redis, open: openPlain},
	"etcd":        {found: fastEtcd, set: fastEtcd, server: testbed.Etcd, open: openEtcd, values: true, fence: true},
	"zookeeper":   {server: testbed.ZooKeeper, open: openZooKeeper, values: true},
	"consul":      {server: testbed.Consul, open: openConsul, values: true},
	"postgres":    {set: durablePostgres, server: testbed.Postgres, open: openPostgres, values: true, sql: true},
	"postgres-table": {set: durablePostgres, server: testbed.Postgres, open: openPostgresTable, values: true,
		sql: true},
	"mysql":       {found: weakMariaDB, server: testbed.MariaDB, open: openMySQL, sql: true},
	"mysql-table": {found: weakMariaDB, server: testbed.MariaDB, open: openMySQLTable, sql: true},
}

func openRedis(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	d, err := redis.Open(t.Context(), dialRedis(t, addr), &redis.Options{TTL: ttl})
	return orNil(d, err)
}

func openPlain(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	d, err := redis.OpenPlain(t.Context(), dialRedis(t, addr), &redis.Options{TTL: ttl})
	if err != nil {
		return nil, err
	}
	return drivertest.Advisory(d), nil
}

func dialRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	c, err := redis.Dial("redis://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func openEtcd(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	d, err := etcd.Open(t.Context(), c, &etcd.Options{TTL: ttl})
	return orNil(d, err)
}

func openZooKeeper(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	d, err := zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{addr}, TTL: ttl})
	return orNil(d, err)
}

func openConsul(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	d, err := consul.Open(t.Context(), &consul.Options{Address: addr, TTL: ttl})
	return orNil(d, err)
}

func postgresAt(addr string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
}

func openPostgres(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	config, err := pgx.ParseConfig(postgresAt(addr))
	if err != nil {
		return nil, err
	}
	d, err := postgres.Open(t.Context(), config, &postgres.Options{TTL: ttl})
	return orNil(d, err)
}

func openPostgresTable(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	pool, err := pgxpool.New(t.Context(), postgresAt(addr))
	if err != nil {
		return nil, err
	}
	t.Cleanup(pool.Close)
	d, err := postgres.OpenTable(t.Context(), pool, &postgres.TableOptions{TTL: ttl})
	return orNil(d, err)
}

// mysqlAt returns a data source name for an address of the testbed.
func mysqlAt(addr string) string { return "root@tcp(" + addr + ")/test?interpolateParams=true" }

func openMySQL(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	config, err := client.ParseDSN(mysqlAt(addr))
	if err != nil {
		return nil, err
	}
	config.Logger = &client.NopLogger{}
	d, err := mysql.Open(t.Context(), config, &mysql.Options{TTL: ttl})
	return orNil(d, err)
}

func openMySQLTable(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	db, err := sql.Open("mysql", mysqlAt(addr))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = db.Close() })
	d, err := mysql.OpenTable(t.Context(), db, &mysql.Options{TTL: ttl})
	return orNil(d, err)
}

func openKube(t *testing.T, k *testbed.Kube, addr string, ttl time.Duration) (driver.Fenced, error) {
	config := &rest.Config{Host: "https://" + addr, BearerToken: testbed.KubeAdmin,
		TLSClientConfig: rest.TLSClientConfig{CAData: k.CA}}
	d, err := kube.Open(t.Context(), config, &kube.Options{Namespace: "default", TTL: ttl})
	return orNil(d, err)
}

// orNil keeps a nil pointer from becoming a driver.
func orNil[D driver.Fenced](d D, err error) (driver.Fenced, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// mustOpen opens a driver until the end of the test.
func mustOpen(t *testing.T, open func() (driver.Fenced, error)) driver.Fenced {
	t.Helper()
	d, err := open()
	if err != nil {
		t.Fatal(err)
	}
	closed(t, d)
	return d
}

func closed(t *testing.T, d driver.Fenced) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = d.Close(ctx) // the server may have been broken
	})
}

func openMemory() driver.Fenced { return memory.NewSpace().Open(nil) }

func dialAll(t *testing.T, nodes []string) (clients []rueidis.Client) {
	for _, addr := range nodes {
		clients = append(clients, dialRedis(t, addr))
	}
	return clients
}

func promote(t *testing.T, replica *testbed.Server) {
	t.Helper()
	c := dialRedis(t, replica.Addr())
	if err := c.Do(t.Context(), c.B().Arbitrary("REPLICAOF", "NO", "ONE").Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

func containsLine(text, line string) bool {
	return slices.Contains(strings.Split(text, "\r\n"), line)
}
