package postgres

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestRates compares pairs of acquire and release, each goroutine with a name of its own, with
// advisory locks on a pool of 32 and with what the server commits durably.
func TestRates(t *testing.T) {
	testbed.MeasuresOnly(t)
	server := testbed.Postgres(t, "-c", "fsync=on")
	pool := pooled(t, server, 32)
	if _, err := pool.Exec(t.Context(), `create table committed (k int primary key, v bigint)`); err != nil {
		t.Fatal(err)
	}
	session, rows := openOn(t, server.Addr(), time.Minute), longTable(t, server)
	peers := []testbed.Contestant{
		{Name: "advisory", Work: func(i int) error { return advisoryPair(t.Context(), pool, int64(i)) }},
		{Name: "commits", Work: func(i int) error {
			_, err := pool.Exec(t.Context(), `insert into committed values ($1, 0) on conflict (k) do update set v = committed.v + 1`, i)
			return err
		}},
	}
	for _, goroutines := range []int{1, 16, 256} {
		for _, name := range strings.Fields(cmp.Or(os.Getenv("RATES"), "sessions table")) {
			d := map[string]driver.Fenced{"sessions": session, "table": rows}[name]
			own := testbed.Contestant{Name: name, Work: func(i int) error { return pairOf(t.Context(), d, i) }}
			testbed.Compare(t, goroutines, append([]testbed.Contestant{own}, peers...)...)
		}
	}
}

func pairOf(ctx context.Context, d driver.Fenced, i int) error {
	name, owner := fmt.Sprint("rate/", i), fmt.Sprint("o/", i)
	if _, err := d.Acquire(ctx, driver.Request{Name: name, Owner: owner}); err != nil {
		return err
	}
	return d.Release(ctx, name, owner)
}

func advisoryPair(ctx context.Context, pool *pgxpool.Pool, key int64) error {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	if _, err := c.Exec(ctx, `select pg_advisory_lock($1)`, key); err != nil {
		return err
	}
	_, err = c.Exec(ctx, `select pg_advisory_unlock($1)`, key)
	return err
}

func pooled(t *testing.T, server *testbed.Server, connections int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func BenchmarkPair(b *testing.B) {
	server := testbed.Postgres(b)
	for name, d := range map[string]driver.Fenced{"session": openOn(b, server.Addr(), time.Minute), "table": longTable(b, server)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Acquire(b.Context(), driver.Request{Name: "x", Owner: "o"}); err != nil {
					b.Fatal(err)
				}
				if err := d.Release(b.Context(), "x", "o"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
