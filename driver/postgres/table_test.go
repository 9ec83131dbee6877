package postgres

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestTableFenced(t *testing.T)  { drivertest.RunFenced(t, tableHarness(t)) }
func TestTableWatcher(t *testing.T) { drivertest.RunWatcher(t, tableHarness(t)) }
func TestTableBreaker(t *testing.T) { drivertest.RunBreaker(t, tableHarness(t)) }

func tableHarness(t *testing.T) drivertest.Harness {
	shared := testbed.Postgres(t)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			server, namespace := serverFor(t, shared, exclusive)
			return &tableBackend{paths.New[driver.Fenced](server), operator(t, server.URL()), namespace}
		},
		TTL:        suiteTTL,
		Heartbeat:  heartbeat,
		DeadWaiter: suiteTTL + 2*heartbeat, // it may die with a try under way
		Without:    drivertest.FIFO | drivertest.LostPushes | drivertest.Queue,
	}
}

// tableBackend is a server with a path of its own for each pool.
type tableBackend struct {
	*paths.Server[driver.Fenced]
	operator  *pgxpool.Pool
	namespace string
}

func (b *tableBackend) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		pool := operator(t, urlAt(path.Addr()))
		t.Cleanup(path.Close) // before the pool, which waits for what does not answer
		d, err := OpenTable(t.Context(), pool, &TableOptions{TTL: suiteTTL, Namespace: b.namespace})
		if err != nil {
			return nil, err // not a typed nil
		}
		return d, nil
	})
}

func (b *tableBackend) Faults() drivertest.Faults { return b.Server }

func (b *tableBackend) Residue(t *testing.T, name string) []string {
	t.Helper()
	rows, err := b.operator.Query(context.Background(),
		`select owner from `+b.namespace+`_lease where name = $1 and owner is not null and expires > clock_timestamp()`, name)
	if err != nil {
		t.Fatal(err)
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func (b *tableBackend) Delete(t *testing.T, name string) {
	t.Helper()
	if _, err := b.operator.Exec(context.Background(), `delete from `+b.namespace+`_lease where name = $1`, name); err != nil {
		t.Fatal(err)
	}
}

// TestCostOfManyRowsAtOnce: what waits while statements are under way shares the next one.
func TestCostOfManyRowsAtOnce(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	d := longTable(t, server)
	const herd = 64
	for way, do := range eachWay(d) {
		before := executed(t, o)
		for answers, left := atOnce(herd, do), herd; left > 0; left-- {
			if err := receive(t, answers, "an answer"); err != nil {
				t.Fatal(err)
			}
		}
		if n := executed(t, o) - before; n > herd/2 {
			t.Errorf("%s: %d statements for %d callers", way, n, herd)
		}
	}
	left := 0
	if err := o.QueryRow(t.Context(), `select count(*) from interlock_lease where owner is not null`).Scan(&left); err != nil || left > 0 {
		t.Errorf("%d rows are held after their release (%v)", left, err)
	}
}

// TestLockedRowHoldsUpNobody who shares its statement.
func TestLockedRowHoldsUpNobody(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	o, d := operator(t, server.URL()), longTable(t, server)
	const herd = 32
	for range 2 { // the rows are there the second time
		for way, do := range eachWay(d) {
			tx, err := o.Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), `insert into interlock_lease as l (name, counter, since, expires) values ('n/007', 1, '2020-01-01', '2020-01-01')
					on conflict (name) do update set since = l.since`)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // if the test fails
			answers := atOnce(herd, do)
			for range herd - 1 {
				if err := receive(t, answers, way+": those whose rows are not locked"); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Rollback(context.Background()); err != nil {
				t.Fatal(err)
			}
			if err := receive(t, answers, way+": the last one"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// atOnce does something for many names, and returns the answers.
func atOnce(many int, do func(name string) error) <-chan error {
	answers := make(chan error, many)
	for i := range many {
		go func() { answers <- do(fmt.Sprintf("n/%03d", i)) }()
	}
	return answers
}

// eachWay is to acquire a name, and then to release it.
func eachWay(d driver.Fenced) iter.Seq2[string, func(name string) error] {
	return func(yield func(string, func(string) error) bool) {
		_ = yield("acquire", func(name string) error {
			_, err := d.Acquire(context.Background(), driver.Request{Name: name, Owner: "o" + name})
			return err
		}) && yield("release", func(name string) error { return d.Release(context.Background(), name, "o"+name) })
	}
}

// An old row that somebody has locked does not keep leases from being renewed.
func TestSweepDoesNotDelayRenewals(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	o := operator(t, server.URL())
	openTableAt(t, server.URL(), DefaultNamespace) // makes the table
	tx, err := o.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	_, err = o.Exec(t.Context(), `insert into interlock_lease (name, counter, since, expires) values ('old', 1, '2020-01-01', '2020-01-01')`)
	if err == nil {
		_, err = tx.Exec(t.Context(), `select from interlock_lease for update`)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := OpenTable(t.Context(), o, &TableOptions{TTL: MinTTL}) // sweeps at once
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, d)
	var r driver.Request
	renewed := make(chan error, 100)
	r.Events.Renewed = func(_ time.Duration, err error) { renewed <- err }
	g := attempt(t.Context(), d, "x", r)
	for range 3 {
		if err := receive(t, renewed, "a renewal"); err != nil || g.grant.Lease.Remaining() <= 0 {
			t.Fatalf("renewed with %v, %v left", err, g.grant.Lease.Remaining())
		}
	}
}
