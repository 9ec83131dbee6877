package postgres

import (
	"context"
	"errors"
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

// Table is a fenced lock by rows with a lease, on the user's own pool. It works
// behind poolers in any mode, and keeps one goroutine, one for each statement under
// way and, where the server can be reached without a pooler, another with a
// connection to listen on. It is safe for concurrent use.
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

// OpenTable creates the tables if they are missing, and computes the guarantees.
// The pool stays the caller's, who closes it after the Table. Everything is one
// statement a time, without a prepared one where a pooler stands between, so that it may be
// of any kind; only the creation of the tables needs a transaction. What waits while
// statements are under way shares the next one, and its commit. A Table and a [Driver] do not
// exclude each other: all who share names use one of the two.
func OpenTable(ctx context.Context, pool *pgxpool.Pool, o *TableOptions) (*Table, error) {
	options, err := o.withDefaults()
	if err == nil && pool == nil {
		err = errors.New("a pool is required")
	}
	if err != nil {
		return nil, problem("open", "", interlock.Bug, err)
	}
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, "open", "")
	}
	rows := &tableRows{pool: pool, namespace: options.Namespace, ttl: options.TTL, missing: true}
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

// Guarantees says what is promised, as computed when the Table opened.
func (t *Table) Guarantees() interlock.Guarantees { return t.guarantees }

// open creates the tables, judges their counters, and finds out whether a pooler stands
// between.
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

// isDirect reports whether the server process is the one that the connection
// was made with. A pooler reports a number of its own.
func isDirect(ctx context.Context, c *pgx.Conn) (bool, error) {
	var pid uint32
	err := c.QueryRow(ctx, `select pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid)
	return pid == c.PgConn().PID(), err
}

// interval is rare where releases are notified, and otherwise grows.
func (t *tableRows) interval(refusals int) time.Duration {
	if t.direct && refusals > 1 {
		return jittered()
	}
	return backoff.Policy{First: 50 * time.Millisecond, Max: heartbeat}.Delay(refusals, rand.Float64())
}

// seed judges the rows' counters by the server's clock, and raises or lowers them
// as Options ask.
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
