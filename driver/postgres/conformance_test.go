package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
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
		return EmptyServer(t), DefaultNamespace
	}
	return shared, fmt.Sprint("n", namespaces.Add(1))
}

var namespaces atomic.Int64

func sessionHarness(t *testing.T) drivertest.Harness {
	return harness(t, 0, func(t *testing.T, url, namespace string) (driver.Fenced, error) {
		return Open(t.Context(), configOf(t, url), &Options{TTL: suiteTTL, Namespace: namespace})
	}, func(b lockBackend) drivertest.Backend { return &sessionBackend{b} })
}

// harness is that of one kind of lock.
func harness(t *testing.T, without drivertest.Ability, open func(t *testing.T, url, namespace string) (driver.Fenced, error),
	kind func(lockBackend) drivertest.Backend) drivertest.Harness {
	shared := EmptyServer(t)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			server, namespace := serverFor(t, shared, exclusive)
			return kind(lockBackend{paths.At(server, func(t *testing.T, addr string) (driver.Fenced, error) {
				return open(t, urlAt(addr), namespace)
			}), operator(t, server.URL()), namespace})
		},
		TTL:        suiteTTL,
		Heartbeat:  heartbeat,
		DeadWaiter: suiteTTL + 2*heartbeat, // it may die with a try under way
		Without:    drivertest.FIFO | drivertest.LostPushes | without,
	}
}

// operator is a pool that goes past every fault of the paths.
func operator(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	testbed.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func exec(t testing.TB, o *pgxpool.Pool, query string, args ...any) {
	t.Helper()
	_, err := o.Exec(context.WithoutCancel(t.Context()), query, args...)
	testbed.OK(t, err)
}

// value returns the only value of a query.
func value[V any](t testing.TB, o *pgxpool.Pool, query string, args ...any) (v V) {
	t.Helper()
	testbed.OK(t, o.QueryRow(context.WithoutCancel(t.Context()), query, args...).Scan(&v))
	return v
}

// configOf parses a URL.
func configOf(t testing.TB, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	testbed.OK(t, err)
	return config
}

func urlAt(addr string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
}

// lockBackend is a server with a path of its own for each driver.
type lockBackend struct {
	paths.Backend[driver.Fenced]
	operator  *pgxpool.Pool
	namespace string
}

// column returns the rows of a query.
func (b lockBackend) column(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, err := b.operator.Query(context.Background(), query, args...)
	testbed.OK(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	testbed.OK(t, err)
	return found
}

type sessionBackend struct{ lockBackend }

// Residue is the lock itself, and who waits with a session that lives.
func (b *sessionBackend) Residue(t *testing.T, name string) []string {
	t.Helper()
	return b.column(t, `select 'held by process ' || pid from pg_locks where locktype = 'advisory' and objsubid = 1
			and (classid::bigint << 32 | objid::bigint) = $1
		union all
		select owner || ' waits' from `+b.namespace+`_waiter c where key = $1 and exists (
			select from pg_locks where locktype = 'advisory' and objsubid = 2
			and classid::bigint::bit(32)::int = `+fmt.Sprint(sessionClass(b.namespace))+` and objid::bigint = c.session)`, Key(b.namespace, name))
}

// Delete ends the session that holds name.
func (b *sessionBackend) Delete(t *testing.T, name string) {
	t.Helper()
	b.column(t, `select pg_terminate_backend(pid, 5000)::text from pg_locks
		where locktype = 'advisory' and objsubid = 1 and (classid::bigint << 32 | objid::bigint) = $1`, Key(b.namespace, name))
}

func TestValues(t *testing.T) {
	t.Parallel()
	shared := EmptyServer(t)
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return paths.At(server, func(t *testing.T, addr string) (driver.Values, error) {
				return NewValues(operator(t, urlAt(addr)), "public."+namespace+"_limits"), nil
			})
		},
	})
}

func TestKeyValues(t *testing.T) {
	t.Parallel()
	shared := EmptyServer(t)
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return paths.At(server, func(t *testing.T, addr string) (driver.KeyValues, error) {
				return NewKeyValues(operator(t, urlAt(addr)), "public."+namespace+"_kv"), nil
			})
		},
	})
}

// TestSwapWithoutAConnection: a swap that got no connection of the pool was not sent.
func TestSwapWithoutAConnection(t *testing.T) {
	t.Parallel()
	pool := operator(t, EmptyServer(t).URL()+"&pool_max_conns=1")
	conn, err := pool.Acquire(t.Context())
	testbed.OK(t, err)
	defer conn.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = NewKeyValues(pool, "kv").Swap(ctx, driver.Swap{Key: "k", Value: []byte("v")})
	testbed.WantKind(t, err, interlock.Definite, context.DeadlineExceeded)
}

// TestLongTableNames: Postgres cuts names above 63 bytes, so two stores would be one.
func TestLongTableNames(t *testing.T) {
	t.Parallel()
	pool := operator(t, urlAt(EmptyServer(t).Addr()))
	want := func(table string, err error, valid bool) {
		t.Helper()
		if valid && err != nil || !valid && (interlock.Kind(err) != interlock.Bug || !errors.Is(err, interlock.ErrName)) {
			t.Errorf("a name of %d bytes: %v", len(table), err)
		}
	}
	for _, length := range []int{54, 55, 62, 63, 64} {
		table, other := strings.Repeat("t", length), strings.Repeat("t", length-1)+"v"
		kv := NewKeyValues(pool, "public."+table)
		_, err := kv.Swap(t.Context(), driver.Swap{Key: table, Value: []byte("x")})
		want(table, err, length <= 62)
		_, err = kv.Get(t.Context(), table)
		want(table, err, length <= 62)
		_, err = NewValues(pool, "public."+other).Get(t.Context(), table)
		want(other, err, length <= 63)
	}
}

func TestNotifierSuite(t *testing.T) {
	t.Parallel()
	shared := EmptyServer(t)
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.NotifierBackend {
			server, _ := serverFor(t, shared, exclusive)
			name := t.Name()
			channel := `it's a "` + name[strings.LastIndexByte(name, '/')+1:]
			return paths.At(server, func(t *testing.T, addr string) (driver.Notifier, error) {
				return NewNotifier(configOf(t, urlAt(addr)), channel, nil)
			})
		},
	})
}
