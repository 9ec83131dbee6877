package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// TableOptions of a [Table]; nil and the zero value work. A claim lives for the TTL without
// renewal, by the server's clock, and is renewed every third of it.
type TableOptions = Options

type leases = leasetable.Table

// Table is a fenced lock by rows with a lease, on the user's own pool. It works behind poolers in any
// mode. It has two goroutines, one for each statement under way and, without a pooler, one with a
// connection that listens. It is safe for concurrent use.
type Table struct{ *leases }

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
// other: processes that share names must use the same one. If default_transaction_isolation of the
// pool's sessions is above READ COMMITTED, a statement that waited for another one on the same row can
// fail with 40001. That is Retryable, and package claim/lock repeats acquisitions. OpenTable blocks for up
// to 10 s, or until ctx ends.
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
	t := &Table{leasetable.New(rows, leasetable.Config{
		Driver: fail, TTL: options.TTL, Interval: rows.interval, Batch: 10000,
		Promises: leasetable.Guarantees("postgres table", rows.direct, f.durable && f.synchronous, options.TTL, MinTTL, MaxTTL),
		Sweeps:   leasetable.Schedule{Every: time.Hour, Next: boottime.Now()},
	})}
	var loops []func(context.Context)
	if rows.direct {
		l := &listener{config: pool.Config(), channel: options.Namespace + "_free", deliver: t.Wake}
		loops = append(loops, l.run)
	}
	t.Start(loops...)
	return t, nil
}

// open creates the tables, checks their counters, and detects a pooler.
func (t *tableRows) open(ctx context.Context, seed driver.Seed) (f facts, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
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
	return f, failedBefore(ctx, "open", "", err)
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

// tableRows are the rows of a [Table].
type tableRows struct {
	pool      *pgxpool.Pool
	namespace string
	ttl       time.Duration
	direct    bool // no pooler stands between: notifications come, and statements may be prepared

	missing atomic.Bool // the tables may not be there
}

const tableSchema = `
create table if not exists {ns}_lease (
	name text collate "C" primary key,
	owner text collate "C",
	counter bigint not null,
	since timestamptz not null,
	expires timestamptz not null,
	awaited timestamptz
);
create table if not exists {ns}_lease_break (
	id bigint generated always as identity primary key,
	name text collate "C" not null,
	owner text not null,
	reason text not null,
	who text not null,
	counter bigint not null,
	at timestamptz not null default clock_timestamp()
);
create index if not exists {ns}_lease_break_name on {ns}_lease_break (name, id);`

// rowPatience is how long a statement for several owners waits for a row that another
// transaction has locked, in ms. Then each asks alone.
const rowPatience = 50

// lockRows: names, owners, TTLs in ms; for how many ms each caller will wait for a notification
// (0 if it will not); for how many ms to wait for a locked row (0 for the session's own bound).
// A row's counter is computed while the row is locked, from the counter that it replaces. A new
// row starts above every row that was swept; the highest counter of those is kept under the
// empty name. The lease begins before the row is waited for.
var lockRows = `with asked as materialized (
	select *, case when $5::bigint > 0 then set_config('lock_timeout', $5::text, true) end
	from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as a (name, owner, ttl, waits)
), won as (
	insert into {ns}_lease as l (name, owner, counter, since, expires)
	select name, owner, greatest(` + clockFloor + `, 1 + coalesce((select counter from {ns}_lease where name = ''), 0)),
		clock_timestamp(), clock_timestamp() + ttl * interval '1 ms' from asked
	on conflict (name) do update set owner = excluded.owner,
		counter = case when l.owner = excluded.owner and l.expires > clock_timestamp() then l.counter
			else greatest(l.counter + 1, ` + clockFloor + `) end,
		since = case when l.owner = excluded.owner and l.expires > clock_timestamp() then l.since else clock_timestamp() end,
		expires = greatest(l.expires, excluded.expires)
	where l.owner is null or l.owner = excluded.owner or l.expires <= clock_timestamp()
	returning name, counter
), awaited as (
	update {ns}_lease l set awaited = clock_timestamp() + waits * interval '1 ms'
	from asked a where l.name = a.name and waits > 0 and l.name not in (select name from won)
)
select name, counter, '', clock_timestamp(), clock_timestamp(), 0::bigint from won
union all
select name, 0, coalesce(owner, ''), since, expires, greatest(0, extract(epoch from expires - clock_timestamp()) * 1000)::bigint
from {ns}_lease where name = any ($1) and name not in (select name from won)`

// lockedRows locks the rows of names and owners in the order of the names.
const lockedRows = `mine as materialized (
	select l.name from {ns}_lease l join asked a on l.name = a.name and l.owner = a.owner order by l.name for update of l
)`

// freeRows: names, owners, and for how many ms to wait for a locked row. A release that is
// lost in a crash costs time and no safety, so it does not wait for the disk.
const freeRows = `with asked as materialized (
	select *, case when $3::bigint > 0 then set_config('lock_timeout', $3::text, true) end
	from unnest($1::text[], $2::text[]) as a (name, owner)
), ` + lockedRows + `, freed as (
	update {ns}_lease l set owner = null, expires = clock_timestamp() from mine where l.name = mine.name
	returning l.name, awaited > clock_timestamp() as awaited
)
select set_config('synchronous_commit', 'off', true), (select count(pg_notify('{ns}_free', name)) from freed where awaited)`

// keepRows: names, owners, TTL in ms, for how many ms to wait for a locked row.
const keepRows = `with patient as materialized (
	select set_config('lock_timeout', $4::bigint::text, true)
), asked as materialized (
	select a.* from unnest($1::text[], $2::text[]) as a (name, owner), patient
), ` + lockedRows + `
update {ns}_lease l set expires = clock_timestamp() + $3::bigint * interval '1 ms'
from mine where l.name = mine.name and l.expires > clock_timestamp() returning l.owner`

// sweepSize is how many rows one sweep removes at most.
const sweepSize = 10000

// sweepRows removes rows that were not used for a day: limit. A statement that waits for such a row
// does not see the counter that is kept, so only the clock raises its own above that of the row.
var sweepRows = `with old as (
	select name from {ns}_lease where name <> '' and expires < clock_timestamp() - interval '1 day'
		and counter < ` + clockFloor + ` limit $1::bigint for update skip locked
), gone as (
	delete from {ns}_lease l using old where l.name = old.name returning counter
)
insert into {ns}_lease (name, counter, since, expires)
select '', max(counter), clock_timestamp(), clock_timestamp() from gone having count(*) > 0
on conflict (name) do update set counter = greatest({ns}_lease.counter, excluded.counter)`

// showRows: whether name is a prefix, name, limit.
const showRows = `select name, owner, counter, since, ceil(extract(epoch from expires - clock_timestamp()) * 1000)::bigint
from {ns}_lease where owner is not null and expires > clock_timestamp() and name <> ''
and (name = $2::text or $1::bool and starts_with(name, $2)) order by name limit $3::bigint`

// breakRow: name, owner, reason, by.
const breakRow = `with gone as (
	update {ns}_lease set owner = null, expires = clock_timestamp()
	where name = $1::text and owner = $2::text and expires > clock_timestamp() returning counter
), noted as (
	insert into {ns}_lease_break (name, owner, reason, who, counter) select $1, $2, $3::text, $4::text, counter from gone returning counter, at
)
select counter, at from noted where pg_notify('{ns}_free', $1) is not null`

// Take asks once.
func (t *tableRows) Take(ctx context.Context, asks []*leasetable.Ask) error {
	ttls, waits := make([]int64, len(asks)), make([]int64, len(asks))
	sent := boottime.Now()
	for i, a := range asks {
		if ttls[i] = a.Lease(t.ttl).Milliseconds(); !a.NoWait && t.direct {
			waits[i] = (2 * heartbeat).Milliseconds()
		}
		// Without a row in the answer: it is newer than the statement's snapshot, look again.
		a.Row = leasetable.Row{Sent: sent, Left: time.Millisecond}
	}
	return t.together(ctx, "acquire", asks, func(rows pgx.Rows) error {
		var name string
		var left int64
		row := leasetable.Row{Sent: sent}
		err := rows.Scan(&name, &row.Counter, &row.Owner, &row.Since, &row.Until, &left)
		if a := leasetable.Find(asks, name); a != nil {
			row.Left = time.Duration(left) * time.Millisecond
			a.Row = row
		}
		return err
	}, lockRows, ttls, waits)
}

// Free releases rows.
func (t *tableRows) Free(ctx context.Context, asks []*leasetable.Ask) error {
	return t.together(ctx, "release", asks, nil, freeRows)
}

// together runs a statement for owners, whose last parameter is how long to wait for a row.
func (t *tableRows) together(ctx context.Context, op string, asks []*leasetable.Ask, each func(pgx.Rows) error, text string, more ...any) error {
	names, owners := make([]string, len(asks)), make([]string, len(asks))
	for i, a := range asks {
		names[i], owners[i] = a.Name, a.Owner
	}
	var args []any // as the pool prefers: prepared
	wait := int64(0)
	if !t.direct {
		args = append(args, pgx.QueryExecModeExec)
	}
	if len(asks) > 1 {
		wait = rowPatience
	}
	err := t.send(ctx, op, "", each, text, append(append(append(args, names, owners), more...), wait)...)
	if wait > 0 {
		return refusedRow(op, err)
	}
	return err
}

// refusedRow marks the error of a statement that did not get a row in time: nothing was done.
func refusedRow(op string, err error) error {
	if hasState(err, lockNotAvailable) {
		return problem(op, "", interlock.Retryable, fmt.Errorf("%w: %w", interlock.ErrHeld, err))
	}
	return err
}

// Renew is one statement.
func (t *tableRows) Renew(ctx context.Context, names, owners []string, ttl, patience time.Duration) (lost []string, err error) {
	ours := map[string]bool{}
	err = t.query(ctx, "renew", "", func(rows pgx.Rows) error {
		var owner string
		err := rows.Scan(&owner)
		ours[owner] = true
		return err
	}, keepRows, names, owners, ttl.Milliseconds(), max(1, patience.Milliseconds()))
	return slices.DeleteFunc(slices.Clone(owners), func(owner string) bool { return ours[owner] }), refusedRow("renew", err)
}

// Sweep is one statement, which skips rows that are locked.
func (t *tableRows) Sweep(ctx context.Context) (more bool, err error) {
	return false, t.query(ctx, "sweep", "", nil, sweepRows, sweepSize)
}

// Show reads the rows that are held.
func (t *tableRows) Show(ctx context.Context, op, name string, prefix bool, limit int) (locks []driver.LockState, err error) {
	if err := fail.CheckNames(op, cmp.Or(name, "-"), "-"); err != nil {
		return nil, err
	}
	err = t.query(ctx, op, name, func(rows pgx.Rows) error {
		var name, owner string
		var counter, left int64
		var since time.Time
		if err := rows.Scan(&name, &owner, &counter, &since, &left); err != nil {
			return err
		}
		state, err := leasetable.State(name, owner, counter, since, time.Duration(left)*time.Millisecond)
		locks = append(locks, state)
		return err
	}, showRows, prefix, name, limit)
	return locks, err
}

// States is who holds what, by the token, and whether it is held.
func (t *tableRows) States(ctx context.Context, prefix string) (map[string]string, error) {
	states := map[string]string{}
	err := t.query(ctx, "watch", prefix, func(rows pgx.Rows) error {
		var name, state string
		err := rows.Scan(&name, &state)
		states[name] = state
		return err
	}, `select name, counter || ' ' || (owner is not null and expires > clock_timestamp())
		from {ns}_lease where name <> '' and starts_with(name, $1::text)`, prefix)
	return states, failure.Uncommitted(err)
}

// Break is one statement.
func (t *tableRows) Break(ctx context.Context, b driver.Break) (record *driver.BreakRecord, err error) {
	err = t.query(ctx, "break", b.Name, func(rows pgx.Rows) error {
		var counter int64
		var at time.Time
		if err := rows.Scan(&counter, &at); err != nil {
			return err
		}
		found, err := leasetable.Broken(b, counter, at)
		record = &found
		return err
	}, breakRow, b.Name, b.Owner, b.Reason, b.By)
	return record, err
}

// Breaks reads the records.
func (t *tableRows) Breaks(ctx context.Context, name string, limit int) (all []driver.BreakRecord, err error) {
	if err := fail.CheckNames("list breaks", cmp.Or(name, "-"), "-"); err != nil {
		return nil, err
	}
	err = t.query(ctx, "list breaks", name, func(rows pgx.Rows) error {
		var b driver.Break
		var counter int64
		var at time.Time
		if err := rows.Scan(&counter, &at, &b.Name, &b.Owner, &b.Reason, &b.By); err != nil {
			return err
		}
		record, err := leasetable.Broken(b, counter, at)
		all = append(all, record)
		return err
	}, `select counter, at, name, owner, reason, who from {ns}_lease_break where name = $1::text or $1 = '' order by id desc limit $2::bigint`,
		name, limit)
	return all, err
}

func (t *tableRows) sql(text string) string { return strings.ReplaceAll(text, "{ns}", t.namespace) }

// query runs one statement, in a transaction of its own and one round trip. each may be nil.
func (t *tableRows) query(ctx context.Context, op, name string, each func(pgx.Rows) error, text string, args ...any) error {
	return t.send(ctx, op, name, each, text, append([]any{pgx.QueryExecModeExec}, args...)...)
}

func (t *tableRows) send(ctx context.Context, op, name string, each func(pgx.Rows) error, text string, args ...any) error {
	if err := t.ready(ctx, op, name); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, min(max(t.ttl/3, time.Second), 10*time.Second), errNoAnswer)
	defer cancel()
	conn, err := acquire(ctx, bounded, t.pool)
	if err != nil {
		return ofStatement(ctx, op, name, err)
	}
	defer conn.Release()
	rows, err := conn.Query(bounded, t.sql(text), args...)
	for err == nil && rows.Next() && each != nil {
		err = each(rows)
	}
	if rows != nil {
		rows.Close()
		err = errors.Join(err, rows.Err())
	}
	if isUndefined(err) { // the data is gone
		t.missing.Store(true)
		return problem(op, name, interlock.Retryable, driver.WithCause(bounded, err))
	}
	return ofStatement(bounded, op, name, err)
}

// ready creates the tables, if they were not there when they were last used.
func (t *tableRows) ready(ctx context.Context, op, name string) error {
	if !t.missing.Load() {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
	if err := t.create(bounded); err != nil {
		return failedBefore(bounded, op, name, err)
	}
	t.missing.Store(false)
	return nil
}

func (t *tableRows) create(ctx context.Context) error {
	exist := false
	err := t.pool.QueryRow(ctx, t.sql(`select to_regclass('{ns}_lease') is not null and to_regclass('{ns}_lease_break') is not null`),
		pgx.QueryExecModeExec).Scan(&exist)
	if err != nil || exist {
		return err
	}
	return alone(ctx, t.pool, t.namespace, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, t.sql(tableSchema), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// failedBefore is the error of a statement on which nothing depends: what was asked for
// was not sent.
func failedBefore(ctx context.Context, op, name string, err error) error {
	if isUndefined(err) {
		return problem(op, name, interlock.Retryable, driver.WithCause(ctx, err))
	}
	return failure.Uncommitted(ofStatement(ctx, op, name, err))
}
