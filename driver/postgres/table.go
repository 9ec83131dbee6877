package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// TableOptions of a [Table]; nil and the zero value work. A claim lives for the TTL without
// renewal, by the server's clock, and is renewed every third of it.
type TableOptions = Options

type leases = leasetable.Table

// Table is a fenced lock by rows with a lease, on the user's own pool. It works behind poolers in any
// mode. It has two goroutines, one for each statement under way and, without a pooler, one with a
// connection that listens. It is safe for concurrent use.
type Table struct {
	*leases
	guarantees interlock.Guarantees
}

var (
	_ driver.Fenced    = (*Table)(nil)
	_ driver.Inspector = (*Table)(nil)
	_ driver.Watcher   = (*Table)(nil)
	_ driver.Breaker   = (*Table)(nil)
)

// OpenTable creates missing tables, and computes the guarantees. The caller closes the pool after the
// Table. Each operation is one statement, which is not prepared behind a pooler, so any kind of pooler
// works; only the creation of the tables needs a transaction. Operations that arrive while statements
// are under way share the next statement and its commit. A Table and a [Driver] do not exclude each
// other: processes that share names must use the same one.
func OpenTable(ctx context.Context, pool *pgxpool.Pool, o *TableOptions) (*Table, error) {
	options, err := o.withDefaults()
	if err = leasetable.CheckOpening(ctx, fail, err, pool != nil, "a pool is required"); err != nil {
		return nil, err
	}
	rows := &tableRows{pool: pool, namespace: options.Namespace, ttl: options.TTL}
	rows.missing.Store(true)
	f, err := rows.open(ctx, options.Seed)
	if err != nil {
		return nil, err
	}
	t := &Table{guarantees: leasetable.Guarantees("postgres table", rows.direct, f.durable && f.synchronous, options.TTL, MinTTL, MaxTTL)}
	t.leases = leasetable.New(rows, leasetable.Config{
		Driver: fail, TTL: options.TTL, Interval: rows.interval, Batch: 10000,
		Sweeps: leasetable.Schedule{Every: time.Hour, Next: boottime.Now()},
	})
	var loops []func(context.Context)
	if rows.direct {
		l := &listener{config: pool.Config().ConnConfig, channel: options.Namespace + "_free", deliver: t.Wake}
		loops = append(loops, l.run)
	}
	t.Start(loops...)
	return t, nil
}

// Guarantees returns the guarantees, which were computed when the Table opened.
func (t *Table) Guarantees() interlock.Guarantees { return t.guarantees }

// open creates the tables, checks their counters, and detects a pooler.
func (t *tableRows) open(ctx context.Context, seed driver.Seed) (f facts, err error) {
	if err := t.ready(ctx, "open", ""); err != nil {
		return f, err
	}
	err = t.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		if f, err = ask(ctx, c.Conn()); err != nil {
			return err
		}
		if err := t.seed(ctx, c.Conn(), seed); err != nil {
			return err
		}
		t.direct, err = isDirect(ctx, c.Conn())
		return err
	})
	return f, t.failedBefore(ctx, "open", "", err)
}

// isDirect reports whether the server process is that of the connection's start. A pooler reports a
// number of its own.
func isDirect(ctx context.Context, c *pgx.Conn) (bool, error) {
	var pid uint32
	err := c.QueryRow(ctx, `select pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid)
	return pid == c.PgConn().PID(), err
}

// leadsDirectly reports isDirect of a pool.
func leadsDirectly(ctx context.Context, pool *pgxpool.Pool) (direct bool, err error) {
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		direct, err = isDirect(ctx, c.Conn())
		return err
	})
	return direct, err
}

// interval returns the pause between tries: long if releases are notified, otherwise growing.
func (t *tableRows) interval(refusals int) time.Duration {
	if t.direct && refusals > 1 {
		return jittered()
	}
	return backoff.Policy{First: 50 * time.Millisecond, Max: heartbeat}.Delay(refusals, rand.Float64())
}

// seed checks the rows' counters by the server's clock, and raises or lowers them according to
// Options.
func (t *tableRows) seed(ctx context.Context, c *pgx.Conn, seed driver.Seed) error {
	var last, now int64
	err := c.QueryRow(ctx, t.sql(`select coalesce(max(counter), 0), `+clockFloor+` from {ns}_lease`), pgx.QueryExecModeExec).Scan(&last, &now)
	if err != nil {
		return err
	}
	both := func(first, then string, firstArgs, thenArgs []any) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, t.sql(first), append([]any{pgx.QueryExecModeExec}, firstArgs...)...)
			if err == nil {
				_, err = tx.Exec(ctx, t.sql(then), append([]any{pgx.QueryExecModeExec}, thenArgs...)...)
			}
			return err
		})
	}
	return leasetable.Counters{Last: last, Now: now,
		Raise: func(floor int64) error {
			return both(`insert into {ns}_lease (name, counter, since, expires) values ('', $1::bigint, clock_timestamp(), clock_timestamp())
				on conflict (name) do update set counter = greatest({ns}_lease.counter, excluded.counter)`,
				`update {ns}_lease set counter = $1::bigint where counter < $1::bigint`, []any{floor}, []any{floor})
		},
		Lower: func(owner string, r *driver.Repair) error {
			return both(`update {ns}_lease set counter = $1::bigint where counter > $1::bigint + $2::bigint`,
				`insert into {ns}_lease_break (name, owner, reason, who, counter) values ($1::text, $2::text, $3::text, $4::text, $5::bigint)`,
				[]any{now, interlock.MaxAhead.Microseconds()}, []any{driver.BaseName, owner, r.Reason, r.By, now})
		},
	}.Seed(seed)
}
