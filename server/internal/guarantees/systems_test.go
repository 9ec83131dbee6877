package guarantees

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/consul" // consul://
	"github.com/interlock-dev/interlock/driver/drivertest"
	_ "github.com/interlock-dev/interlock/driver/etcd" // etcd://
	"github.com/interlock-dev/interlock/driver/kube"
	"github.com/interlock-dev/interlock/driver/memory"
	_ "github.com/interlock-dev/interlock/driver/mysql"    // mysql://
	_ "github.com/interlock-dev/interlock/driver/postgres" // postgres://
	"github.com/interlock-dev/interlock/driver/redis"
	_ "github.com/interlock-dev/interlock/driver/zookeeper" // zookeeper://
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
	durableMariaDB  = []string{"--innodb-flush-method=fsync"}
)

// systems are the systems with one server.
var systems = map[string]system{
	"redis":       {set: durableRedis, server: testbed.Redis, open: at("redis://%s"), values: true, fence: true},
	"redis-plain": {set: durableRedis, server: testbed.Redis, open: openPlain},
	"etcd":        {found: fastEtcd, set: fastEtcd, server: testbed.Etcd, open: at("etcd://%s"), values: true, fence: true},
	"zookeeper":   {server: testbed.ZooKeeper, open: at("zookeeper://%s"), values: true},
	"consul":      {server: testbed.Consul, open: at("consul://%s"), values: true},
	"postgres":    {set: durablePostgres, server: testbed.Postgres, open: at(postgresURL), values: true, sql: true},
	"postgres-table": {set: durablePostgres, server: testbed.Postgres, open: at(postgresURL + "&mode=table"), values: true,
		sql: true},
	"mysql":       {set: durableMariaDB, server: testbed.MariaDB, open: at("mysql://root@%s/test"), sql: true},
	"mysql-table": {set: durableMariaDB, server: testbed.MariaDB, open: at("mysql://root@%s/test?mode=table"), sql: true},
}

const postgresURL = "postgres://postgres@%s/postgres?sslmode=disable"

// at returns how to open the URL of an address.
func at(url string) func(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
	return func(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
		b, err := backend.Open(t.Context(), fmt.Sprintf(url, addr))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = b.Close(ctx) // the server may have been broken
		})
		return b.Fenced(t.Context(), backend.LockOptions{TTL: ttl})
	}
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
	testbed.OK(t, err)
	t.Cleanup(c.Close)
	return c
}

func openKube(t *testing.T, k *testbed.Kube, addr string, ttl time.Duration) (driver.Fenced, error) {
	config := &rest.Config{Host: "https://" + addr, BearerToken: testbed.KubeAdmin,
		TLSClientConfig: rest.TLSClientConfig{CAData: k.CA}}
	d, err := kube.Open(t.Context(), config, &kube.Options{Namespace: "default", TTL: ttl})
	if err != nil {
		return nil, err // not a typed nil
	}
	return d, nil
}

// mustOpen opens a driver until the end of the test.
func mustOpen(t *testing.T, open func() (driver.Fenced, error)) driver.Fenced {
	t.Helper()
	d, err := open()
	testbed.OK(t, err)
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
	testbed.OK(t, c.Do(t.Context(), c.B().Arbitrary("REPLICAOF", "NO", "ONE").Build()).Error())
}

func containsLine(text, line string) bool {
	return slices.Contains(strings.Split(text, "\r\n"), line)
}

const stepped = "INTERLOCK_GUARANTEES_STEPPED"

// TestMemoryOverAClockStep steps the clock of a process in both directions. Locks stay
// held, and tokens rise by one.
func TestMemoryOverAClockStep(t *testing.T) {
	t.Parallel()
	if os.Getenv(stepped) != "" {
		grantOnRequest(t)
		return
	}
	p := testbed.Start(t, testbed.Program{Path: os.Args[0], Args: []string{"-test.run=^" + t.Name() + "$"}, Env: []string{stepped + "=1"}})
	grant := func() (token, clock int64) {
		fmt.Fprintln(p.Stdin())
		if _, err := fmt.Sscan(p.Line(patience), &token, &clock); err != nil {
			t.Fatal(err)
		}
		return token, clock
	}
	last, _ := grant()
	for _, by := range []time.Duration{20 * long, -20 * long, 0} {
		p.StepClock(by)
		token, clock := grant()
		if off := time.Until(time.Unix(clock, 0)) - by; off.Abs() > time.Minute {
			t.Fatalf("the clock was stepped by %v, and it is %v off that", by, off)
		}
		if token <= last || token-last > 1<<20 {
			t.Errorf("the clock was stepped by %v: token %d after %d", by, token, last)
		}
		last = token
	}
}

// grantOnRequest runs the child: for each line it acquires a lock and prints its token and
// the time.
func grantOnRequest(t *testing.T) {
	d := openMemory()
	acquire(t, d, "held", "holder")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if _, err := ask(t, d, "held"); !errors.Is(err, interlock.ErrHeld) {
			t.Fatalf("a held lock is granted to another owner: %v", err)
		}
		g, err := ask(t, d, "n")
		testbed.OK(t, err)
		release(t, d, "n", fmt.Sprint("one/", owners.Load()))
		fmt.Println(int64(g.Token), time.Now().Unix())
	}
}
