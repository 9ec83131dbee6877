package mysql_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestRates compares pairs of acquire and release, each goroutine with a name of its own, with
// GET_LOCK on a pool of 32 and with what the server commits durably.
func TestRates(t *testing.T) {
	testbed.MeasuresOnly(t)
	server := testbed.MariaDB(t, "--innodb-flush-log-at-trx-commit=1")
	pool := open(t, server.URL()+"?interpolateParams=true").DB
	pool.SetMaxOpenConns(32)
	pool.SetMaxIdleConns(32)
	if _, err := pool.Exec(`create table committed (k int primary key, v bigint) engine = InnoDB`); err != nil {
		t.Fatal(err)
	}
	peers := []testbed.Contestant{
		{Name: "GET_LOCK", Work: func(i int) error { return namedPair(t.Context(), pool, fmt.Sprint("rate/", i)) }},
		{Name: "commits", Work: func(i int) error {
			_, err := pool.Exec(`insert into committed values (?, 0) on duplicate key update v = v + 1`, i)
			return err
		}},
	}
	own := map[string]driver.Fenced{}
	for _, m := range modes {
		own[m.name] = m.mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute})
	}
	for _, goroutines := range []int{1, 16, 256} {
		for _, m := range modes {
			if d := own[m.name]; strings.Contains(cmp.Or(os.Getenv("RATES"), m.name), m.name) {
				testbed.Compare(t, goroutines, append([]testbed.Contestant{{Name: m.name, Work: func(i int) error { return pairOf(t.Context(), d, i) }}}, peers...)...)
			}
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

func namedPair(ctx context.Context, pool *sql.DB, name string) error {
	c, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	var got int
	if err := c.QueryRowContext(ctx, `select get_lock(?, 10)`, name).Scan(&got); err != nil {
		return err
	}
	return c.QueryRowContext(ctx, `select release_lock(?)`, name).Scan(&got)
}

func BenchmarkPair(b *testing.B) {
	server := testbed.MariaDB(b)
	for _, m := range modes {
		d := m.mustOpen(b, server.URL(), &mysql.Options{TTL: time.Minute})
		b.Run(m.name, func(b *testing.B) {
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
