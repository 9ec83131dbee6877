package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/leasetable/leasetabletest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestTableFenced(t *testing.T)  { drivertest.RunFenced(t, tableHarness(t)) }
func TestTableWatcher(t *testing.T) { drivertest.RunWatcher(t, tableHarness(t)) }
func TestTableBreaker(t *testing.T) { drivertest.RunBreaker(t, tableHarness(t)) }

func tableHarness(t *testing.T) drivertest.Harness {
	return harness(t, drivertest.Queue, func(t *testing.T, url, namespace string) (driver.Fenced, error) {
		return OpenTable(t.Context(), operator(t, url), &TableOptions{TTL: suiteTTL, Namespace: namespace})
	}, func(b lockBackend) drivertest.Backend { return &tableBackend{b} })
}

type tableBackend struct{ lockBackend }

func (b *tableBackend) Residue(t *testing.T, name string) []string {
	t.Helper()
	return b.column(t, `select owner from `+b.namespace+`_lease where name = $1 and owner is not null and expires > clock_timestamp()`, name)
}

func (b *tableBackend) Delete(t *testing.T, name string) {
	t.Helper()
	b.column(t, `delete from `+b.namespace+`_lease where name = $1 returning name`, name)
}

func TestCostOfManyRowsAtOnce(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	leasetabletest.CostOfManyAtOnce(t, longTable(t, server), 64, func() int64 { return executed(t, o) })
	if left := value[int](t, o, `select count(*) from interlock_lease where owner is not null`); left > 0 {
		t.Errorf("%d rows are held after their release", left)
	}
}

// TestRefusedConnection: nothing was sent if the server refuses the connection, as it does while it starts
// and when it has too many.
func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	exec(t, o, `create role crowd login connection limit 0`)
	for role, kind := range map[string]interlock.ErrorKind{"crowd": interlock.Retryable, "nobody": interlock.Definite} {
		pool := operator(t, strings.Replace(server.URL(), "postgres@", role+"@", 1))
		_, err := NewKeyValues(pool, "kv").Swap(t.Context(), driver.Swap{Key: "k", Value: []byte("v")})
		testbed.WantKind(t, err, kind, nil)
		token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
		testbed.OK(t, err)
		testbed.WantKind(t, NewValues(pool, "v").Put(t.Context(), "n", driver.Value{Token: token}), kind, nil)
	}
}

// poolOf opens a pool after change.
func poolOf(t *testing.T, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	testbed.OK(t, err)
	change(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testbed.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// TestExhaustedPool: a request that got no connection of the pool was not sent.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	pool := poolOf(t, EmptyServer(t).URL(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	d, err := OpenTable(t.Context(), pool, &TableOptions{TTL: MinTTL})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
	testbed.OK(t, err)
	used, err := pool.Acquire(t.Context())
	testbed.OK(t, err)
	defer used.Release()
	testbed.WantKind(t, attempt(testbed.Bounded(t), d, "x", driver.Request{}).err, interlock.Retryable, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testbed.WantKind(t, NewValues(pool, "v").Put(ctx, "n", driver.Value{Token: token}), interlock.Definite, context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = NewKeyValues(pool, "kv").Get(ctx, "k")
	testbed.WantKind(t, err, interlock.Retryable, context.DeadlineExceeded)
}

// TestHookOfThePool: the connection that listens has the password that BeforeConnect sets.
func TestHookOfThePool(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d, err := OpenTable(t.Context(), poolOf(t, strings.Replace(server.URL(), "postgres@", "nobody@", 1), func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.User = "postgres"; return nil }
	}), nil)
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	testbed.Eventually(t, "the table listens", bound, func() bool {
		return value[bool](t, o, `select exists (select from pg_stat_activity where query like 'listen %')`)
	})
}

// unbounded has the statements whose context has no deadline.
type unbounded chan string

func (u unbounded) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if _, ok := ctx.Deadline(); !ok {
		u <- q.SQL
	}
	return ctx
}

func (u unbounded) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestOpenTableIsBounded: a server that stops to answer does not block it for ever.
func TestOpenTableIsBounded(t *testing.T) {
	t.Parallel()
	statements := make(unbounded, 100)
	pool := poolOf(t, EmptyServer(t).URL(), func(c *pgxpool.Config) { c.ConnConfig.Tracer = statements })
	d, err := OpenTable(context.Background(), pool, nil)
	testbed.OK(t, err)
	testbed.OK(t, d.Close(testbed.Bounded(t)))
	close(statements)
	for s := range statements {
		t.Errorf("without a deadline: %s", s)
	}
}

func TestLockedRowHoldsUpNobody(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	leasetabletest.LockedRowHoldsUpNobody(t, longTable(t, server), func(name string) func() { return lockRow(t, o, name) })
}

func TestLockedRowEndsNoOtherLease(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	d, o := openTableAt(t, server.URL(), DefaultNamespace), operator(t, server.URL())
	leasetabletest.LockedRowEndsNoOtherLease(t, d, func(name string) func() { return lockRow(t, o, name) })
}

// lockRow locks the row of a name in a transaction, which unlock ends.
func lockRow(t *testing.T, o *pgxpool.Pool, name string) (unlock func()) {
	t.Helper()
	tx, err := o.Begin(t.Context())
	testbed.OK(t, err)
	unlock = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(unlock) // if the test fails
	_, err = tx.Exec(t.Context(), `insert into interlock_lease as l (name, counter, since, expires) values ($1, 1, '2020-01-01', '2020-01-01')
		on conflict (name) do update set since = l.since`, name)
	testbed.OK(t, err)
	return unlock
}

// An old row that somebody has locked does not keep leases from being renewed.
func TestSweepDoesNotDelayRenewals(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	openTableAt(t, server.URL(), DefaultNamespace) // makes the table
	tx, err := o.Begin(t.Context())
	testbed.OK(t, err)
	defer tx.Rollback(context.Background())
	exec(t, o, `insert into interlock_lease (name, counter, since, expires) values ('old', 1, '2020-01-01', '2020-01-01')`)
	_, err = tx.Exec(t.Context(), `select from interlock_lease for update`)
	testbed.OK(t, err)
	d, err := OpenTable(t.Context(), o, &TableOptions{TTL: MinTTL}) // sweeps at once
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	r := driver.Request{TTL: 10 * time.Second, Renew: MinTTL / 3} // a busy machine renews late
	renewed := make(chan error, 100)
	r.Events.Renewed = func(_ time.Duration, err error) { renewed <- err }
	g := attempt(t.Context(), d, "x", r)
	for range 3 {
		if err := testbed.Receive(t, renewed, "a renewal"); err != nil || g.grant.Lease.Remaining() <= 0 {
			t.Fatalf("renewed with %v, %v left", err, g.grant.Lease.Remaining())
		}
	}
}

// A sweep under way does not lower the counter of a lock that is acquired meanwhile, even if the
// server's clock was set back since it was granted.
func TestTokensRiseOverASweep(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o, d := operator(t, server.URL()), longTable(t, server)
	ahead := interlock.CounterAt(time.Now().Add(24 * time.Hour))
	exec(t, o, `insert into interlock_lease (name, counter, since, expires) values ('x', $1, now() - interval '2 days', now() - interval '2 days')`, ahead)
	tx, err := o.Begin(t.Context())
	testbed.OK(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), strings.ReplaceAll(sweepRows, "{ns}", DefaultNamespace), sweepSize)
	testbed.OK(t, err)
	granted := make(chan grantOf, 1)
	go func() { granted <- attempt(t.Context(), d, "x", driver.Request{}) }()
	testbed.Eventually(t, "the Acquire has its answer, or waits for the sweep", bound, func() bool {
		return len(granted) > 0 || value[bool](t, o, `select exists (select from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0)`)
	})
	testbed.OK(t, tx.Commit(t.Context()))
	if g := testbed.Receive(t, granted, "the grant"); g.err != nil || g.grant.Token.Counter() <= ahead {
		t.Errorf("token %d, %v after a sweep; before it was %d", g.grant.Token.Counter(), g.err, ahead)
	}
}
