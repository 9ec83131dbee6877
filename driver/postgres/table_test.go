package postgres

import (
	"context"
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
