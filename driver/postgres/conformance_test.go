package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const suiteTTL = 3 * time.Second

func TestFenced(t *testing.T)  { drivertest.RunFenced(t, sessionHarness(t)) }
func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, sessionHarness(t)) }
func TestBreaker(t *testing.T) { drivertest.RunBreaker(t, sessionHarness(t)) }

// serverFor gives a test a server of its own or, in a namespace of its own, the
// shared one.
func serverFor(t *testing.T, shared *testbed.Server, exclusive bool) (*testbed.Server, string) {
	if exclusive {
		return testbed.Postgres(t), DefaultNamespace
	}
	return shared, fmt.Sprint("n", namespaces.Add(1))
}

var namespaces atomic.Int64

func sessionHarness(t *testing.T) drivertest.Harness {
	shared := testbed.Postgres(t)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			server, namespace := serverFor(t, shared, exclusive)
			return &sessionBackend{paths.New[driver.Fenced](server), operator(t, server.URL()), namespace}
		},
		TTL:        suiteTTL,
		Heartbeat:  heartbeat,
		DeadWaiter: suiteTTL + 2*heartbeat, // it may die with a try under way
		Without:    drivertest.FIFO | drivertest.LostPushes,
	}
}

// operator is a pool that goes past every fault of the paths.
func operator(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// configOf parses a URL.
func configOf(t testing.TB, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func urlAt(addr string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
}

// sessionBackend is a server with a path of its own for each driver.
type sessionBackend struct {
	*paths.Server[driver.Fenced]
	operator  *pgxpool.Pool
	namespace string
}

func (b *sessionBackend) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		d, err := Open(t.Context(), configOf(t, urlAt(path.Addr())), &Options{TTL: suiteTTL, Namespace: b.namespace})
		if err != nil {
			return nil, err // not a typed nil
		}
		return d, nil
	})
}

func (b *sessionBackend) Faults() drivertest.Faults { return b.Server }

// Residue is the lock itself, and who waits with a session that lives.
func (b *sessionBackend) Residue(t *testing.T, name string) []string {
	t.Helper()
	var left []string
	for _, text := range []string{
		`select 'held by process ' || pid from pg_locks where locktype = 'advisory' and objsubid = 1
			and (classid::bigint << 32 | objid::bigint) = $1`,
		`select owner || ' waits' from ` + b.namespace + `_waiter c where key = $1 and exists (
			select from pg_locks where locktype = 'advisory' and objsubid = 2
			and classid::bigint::bit(32)::int = ` + fmt.Sprint(sessionClass(b.namespace)) + ` and objid::bigint = c.session)`,
	} {
		rows, err := b.operator.Query(context.Background(), text, Key(b.namespace, name))
		if err != nil {
			t.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

// Delete ends the session that holds name.
func (b *sessionBackend) Delete(t *testing.T, name string) {
	t.Helper()
	_, err := b.operator.Exec(context.Background(), `select pg_terminate_backend(pid, 5000) from pg_locks
		where locktype = 'advisory' and objsubid = 1 and (classid::bigint << 32 | objid::bigint) = $1`, Key(b.namespace, name))
	if err != nil {
		t.Fatal(err)
	}
}
