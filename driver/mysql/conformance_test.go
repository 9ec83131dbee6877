package mysql_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const suiteTTL = 3 * time.Second

func TestTableFenced(t *testing.T)  { drivertest.RunFenced(t, tableHarness(t)) }
func TestTableWatcher(t *testing.T) { drivertest.RunWatcher(t, tableHarness(t)) }
func TestTableBreaker(t *testing.T) { drivertest.RunBreaker(t, tableHarness(t)) }

var namespaces atomic.Int64

// serverFor returns a separate server for a test, or the shared one with a separate
// namespace.
func serverFor(t *testing.T, shared *testbed.Server, exclusive bool) (*testbed.Server, string) {
	if exclusive {
		return mariaDB(t), mysql.DefaultNamespace
	}
	return shared, fmt.Sprint("n", namespaces.Add(1))
}

func tableHarness(t *testing.T) drivertest.Harness {
	return harness(t, drivertest.Queue, func(t *testing.T, dsn, namespace string) (driver.Fenced, error) {
		db := open(t, dsn+"?interpolateParams=true&clientFoundRows="+fmt.Sprint(namespaces.Load()%2 == 0))
		return mysql.OpenTable(t.Context(), db.DB, &mysql.Options{TTL: suiteTTL, Namespace: namespace})
	}, func(b backend) drivertest.Backend { return &tableBackend{b} })
}

// harness returns the harness of one kind of lock.
func harness(t *testing.T, without drivertest.Ability, opener func(t *testing.T, dsn, namespace string) (driver.Fenced, error),
	kind func(backend) drivertest.Backend) drivertest.Harness {
	shared := mariaDB(t)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			server, namespace := serverFor(t, shared, exclusive)
			return kind(backend{paths.At(server, func(t *testing.T, addr string) (driver.Fenced, error) {
				return opener(t, dsnAt(server, addr), namespace)
			}), open(t, server.URL()), namespace})
		},
		TTL:        suiteTTL,
		Heartbeat:  mysql.DefaultPoll,
		DeadWaiter: suiteTTL + 2*mysql.DefaultPoll, // it may die during a try
		HandOvers:  100,
		Without:    drivertest.FIFO | drivertest.LostPushes | without,
	}
}

// backend is a server with a separate path for each driver.
type backend struct {
	paths.Backend[driver.Fenced]
	operator  database // not by a path with faults
	namespace string
}

type tableBackend struct{ backend }

func (b *tableBackend) Residue(t *testing.T, name string) (left []string) {
	t.Helper()
	if owner := b.operator.text(t, `select coalesce(max(concat('held by ', owner)), '') from `+b.namespace+`_lease
		where name = ? and owner <> '' and expires > utc_timestamp(6)`, name); owner != "" {
		left = append(left, owner)
	}
	return left
}

func (b *tableBackend) Delete(t *testing.T, name string) {
	t.Helper()
	_, err := b.operator.Exec(`delete from `+b.namespace+`_lease where name = ?`, name)
	testbed.OK(t, err)
}

func TestFenced(t *testing.T)  { drivertest.RunFenced(t, sessionHarness(t)) }
func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, sessionHarness(t)) }
func TestBreaker(t *testing.T) { drivertest.RunBreaker(t, sessionHarness(t)) }

func sessionHarness(t *testing.T) drivertest.Harness {
	return harness(t, drivertest.Queue|drivertest.Expiry|drivertest.LoneBreaks, func(t *testing.T, dsn, namespace string) (driver.Fenced, error) {
		return mysql.Open(t.Context(), config(t, dsn), &mysql.Options{TTL: suiteTTL, Namespace: namespace})
	}, func(b backend) drivertest.Backend { return &sessionBackend{b} })
}

type sessionBackend struct{ backend }

func config(t testing.TB, dsn string) *client.Config {
	t.Helper()
	c, err := client.ParseDSN(dsn)
	testbed.OK(t, err)
	return c
}

// user returns the connection that has the lock of name, or 0.
func (b *sessionBackend) user(t *testing.T, name string) string {
	t.Helper()
	return b.operator.text(t, `select coalesce(is_used_lock(?), 0)`, mysql.LockName("test", b.namespace, name))
}

func (b *sessionBackend) Residue(t *testing.T, name string) (left []string) {
	t.Helper()
	if id := b.user(t, name); id != "0" {
		left = append(left, "held by connection "+id)
	}
	return left
}

// Delete ends the session that holds name.
func (b *sessionBackend) Delete(t *testing.T, name string) {
	t.Helper()
	id := b.user(t, name)
	if id == "0" {
		return
	}
	b.operator.do(t, "kill "+id)
	testbed.Eventually(t, "the session ends", bound, func() bool { return b.user(t, name) != id })
}

var rowsOf = map[string]string{"session": "interlock_holder", "table": "interlock_lease"}

func TestSeed(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			drivertest.RunSeed(t, drivertest.SeedHarness{
				Open: func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
					d, err := m.open(t.Context(), t, server.URL(), &mysql.Options{Seed: seed})
					if err != nil {
						return nil, err
					}
					t.Cleanup(func() { d.Close(context.Background()) })
					return d.(drivertest.Seeded), nil
				},
				Set: func(t *testing.T, counter int64) {
					admin.do(t, fmt.Sprintf(`update %s set counter = %d`, rowsOf[m.name], counter))
				},
			})
		})
	}
}
