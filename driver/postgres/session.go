package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// session is one connection that carries every lock of a driver. It is replaced
// when the connection ends; what the former one held is never revived.
type session struct {
	id    int32  // locked under the namespace's class for as long as it lives
	pid   string // of its server process, in decimal
	lease *boottime.Lease
	pipe  *pipe
	facts facts

	// Of the reader's goroutine: counters above the first, up to the second, are reserved.
	above, reserved int64

	// Of the tending goroutine, under Driver.mu.
	pinged  boottime.Instant // when the last ping was queued
	pending bool             // and it has not been answered
}

// dialer makes sessions.
type dialer struct {
	config    *pgx.ConnConfig
	namespace string
	ttl       time.Duration
	seed      driver.Seed
}

func (d *dialer) sql(text string) string {
	return strings.NewReplacer("{ns}", d.namespace, "{class}", strconv.Itoa(int(sessionClass(d.namespace)))).Replace(text)
}

// dialTimeout bounds the opening of a session.
const dialTimeout = 10 * time.Second

// open connects and prepares a session, after it has ended those in former.
func (d *dialer) open(ctx context.Context, former []int32) (_ *session, _ *pgx.Conn, err error) {
	conn, err := pgx.ConnectConfig(ctx, d.config.Copy())
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			closeSoon(ctx, conn)
		}
	}()
	s := &session{}
	if s.pid, err = d.probe(ctx, conn); err != nil {
		return nil, nil, err
	}
	if s.facts, err = ask(ctx, conn); err != nil {
		return nil, nil, err
	}
	for _, step := range []func(context.Context, *pgx.Conn) error{
		d.configure, d.create,
		func(ctx context.Context, conn *pgx.Conn) error { return d.endFormer(ctx, conn, former) },
		d.enter,
		func(ctx context.Context, conn *pgx.Conn) error { s.id, err = d.identify(ctx, conn); return err },
		d.prepare,
	} {
		if err := step(ctx, conn); err != nil {
			return nil, nil, err
		}
	}
	if err = d.clear(ctx, conn, s.id); err != nil {
		return nil, nil, err
	}
	sent := boottime.Now()
	if _, err = conn.Exec(ctx, d.sql(statements[stPing]), pgx.QueryExecModeExec, s.id, d.ttl.Milliseconds()); err != nil {
		return nil, nil, err
	}
	// From now on commits do not wait for the disk, but for those that say so: see durably.
	if _, err = conn.Exec(ctx, "set synchronous_commit = off; listen "+pgx.Identifier{d.wakeChannel(s.id)}.Sanitize()); err != nil {
		return nil, nil, err
	}
	s.lease = boottime.NewLease(sent, d.ttl)
	s.pinged = sent
	return s, conn, nil
}

func (d *dialer) wakeChannel(id int32) string { return d.namespace + "_wake_" + strconv.Itoa(int(id)) }

func (d *dialer) watchChannel() string { return d.namespace + "_watch" }

// statementTimeout bounds what a statement of a session may wait for. A session
// whose client vanishes during a statement lives for that much longer.
const statementTimeout = 5 * time.Second

// configure makes the server end the session when it has heard nothing for the
// TTL, and bounds what a statement can wait for. The tables are small when statements are
// planned, and may grow: plans are by index, and made once.
func (d *dialer) configure(ctx context.Context, conn *pgx.Conn) error {
	ttl := milliseconds(d.ttl)
	_, err := conn.Exec(ctx, `select set_config('idle_session_timeout', $1, false),
		set_config('idle_in_transaction_session_timeout', $1, false), set_config('tcp_user_timeout', $1, false),
		set_config('statement_timeout', $2, false), set_config('lock_timeout', $2, false),
		set_config('default_transaction_isolation', 'read committed', false),
		set_config('default_transaction_read_only', 'off', false),
		set_config('client_min_messages', 'error', false), set_config('plan_cache_mode', 'force_generic_plan', false),
		set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
		set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false),
		set_config('application_name', coalesce(nullif(current_setting('application_name'), ''), 'interlock'), false),
		set_config('interlock.synchronous_commit', set_config('synchronous_commit', case current_setting('synchronous_commit')
			when 'off' then 'on' when 'local' then 'on' else current_setting('synchronous_commit') end, false), false)`,
		pgx.QueryExecModeExec, ttl, milliseconds(statementTimeout))
	return err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// create makes the tables, unless they are there.
func (d *dialer) create(ctx context.Context, conn *pgx.Conn) error {
	exist := false
	err := conn.QueryRow(ctx, d.sql(`select to_regclass('{ns}_holder') is not null and to_regclass('{ns}_waiter') is not null
		and to_regclass('{ns}_session') is not null and to_regclass('{ns}_watcher') is not null and to_regclass('{ns}_break') is not null and to_regclass('{ns}_token') is not null and to_regclass('{ns}_reserved') is not null`), pgx.QueryExecModeExec).Scan(&exist)
	if err != nil || exist {
		return err
	}
	return alone(ctx, conn, d.namespace, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, d.sql(schema), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// alone runs a transaction while no other that creates tables of the namespace, or joins
// its sessions, does.
func alone(ctx context.Context, on interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, namespace string, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, on, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, pgx.QueryExecModeExec, Key(namespace, ""))
		if err != nil {
			return err
		}
		return do(tx)
	})
}

// enter joins the other sessions of the namespace. They must all use the tables
// of one schema: the key of a lock does not distinguish schemas, and tokens from
// two sequences do not compare. So each session locks its schema's number, by
// which the others know it, for as long as it lives.
func (d *dialer) enter(ctx context.Context, conn *pgx.Conn) error {
	return alone(ctx, conn, d.namespace, func(tx pgx.Tx) error {
		class, schema, other := schemaClass(d.namespace), int32(0), false
		err := tx.QueryRow(ctx, d.sql(`select hashtext(n.nspname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
			where c.oid = '{ns}_token'::regclass`), pgx.QueryExecModeExec).Scan(&schema)
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, otherSchema, pgx.QueryExecModeExec, class, schema).Scan(&other)
		switch {
		case err != nil:
			return err
		case other:
			return &refusal{fmt.Errorf("sessions of namespace %q use the tables of another schema: all need the same search_path", d.namespace)}
		}
		if err := d.raise(ctx, tx, schema); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `select pg_advisory_lock_shared($1::int, $2::int)`, pgx.QueryExecModeExec, class, schema)
		return err
	})
}

// otherSchema: class, schema. Whether a session of the namespace has another one.
const otherSchema = `select exists (select from pg_locks where locktype = 'advisory' and objsubid = 2 and granted
	and database = (select oid from pg_database where datname = current_database())
	and classid = ($1::int::bigint & 4294967295)::oid and objid <> ($2::int::bigint & 4294967295)::oid)`

// raise lifts the counter to the server's clock, and a second beyond. Tokens may
// be drawn between the look and the raise: a million of them would be needed to
// overtake it. If no other session lives, the server may have forgotten tokens in a
// crash: then nothing is drawn meanwhile, and it is lifted to what was reserved.
func (d *dialer) raise(ctx context.Context, tx pgx.Tx, schema int32) error {
	var last, reserved, now int64
	err := tx.QueryRow(ctx, d.sql(`select last_value, case when exists (`+otherSession+`) then 0
		else coalesce((select counter from {ns}_reserved), 0) end, `+clockFloor+` from {ns}_token`),
		pgx.QueryExecModeExec, schemaClass(d.namespace), schema).Scan(&last, &reserved, &now)
	if err != nil {
		return err
	}
	if err := driver.Plausible(max(last, reserved), clockAt(now)); err != nil {
		return d.repair(ctx, tx, last, now, err)
	}
	floor, err := d.seed.Floor(clockAt(now))
	if err != nil {
		return err
	}
	if last < floor {
		reserved = max(reserved, floor+driver.Headroom.Microseconds())
	}
	if last >= reserved {
		return nil
	}
	return d.set(ctx, tx, reserved)
}

// otherSession: class, schema. The sessions that have entered, after they raised the counter.
const otherSession = `select from pg_locks where locktype = 'advisory' and objsubid = 2 and granted
	and database = (select oid from pg_database where datname = current_database())
	and classid = ($1::int::bigint & 4294967295)::oid and objid = ($2::int::bigint & 4294967295)::oid`

func (d *dialer) set(ctx context.Context, tx pgx.Tx, counter int64) error {
	_, err := tx.Exec(ctx, d.sql(`select setval('{ns}_token', $1)`), pgx.QueryExecModeExec, counter)
	return err
}

// repair lowers an implausible counter to the clock, if Options ask for that, on
// record. The lock on the table keeps other sessions from drawing meanwhile: one could reserve
// what it drew before the repair, or grant what only the former reservation covers. If only what
// was reserved is implausible, the counter is not lowered.
func (d *dialer) repair(ctx context.Context, tx pgx.Tx, last, now int64, implausible error) error {
	r := d.seed.Repair
	if r == nil {
		return implausible
	}
	to := now
	if driver.Plausible(last, clockAt(now)) == nil {
		to = max(last, now)
	}
	to += driver.Headroom.Microseconds()
	if _, err := tx.Exec(ctx, d.sql(`lock table {ns}_reserved in exclusive mode`), pgx.QueryExecModeExec); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, d.sql(`insert into {ns}_break (name, owner, reason, who, counter) values ($1::text, $2::text, $3::text, $4::text, $5::bigint)`),
		pgx.QueryExecModeExec, driver.BaseName, r.Record(last, to), r.Reason, r.By, to)
	if err == nil {
		_, err = tx.Exec(ctx, d.sql(`delete from {ns}_reserved`), pgx.QueryExecModeExec)
	}
	if err != nil {
		return err
	}
	return d.set(ctx, tx, to)
}

// clockAt is a time of the server in microseconds since 2020.
func clockAt(micros int64) time.Time { return time.UnixMicro(interlock.EpochUnixMicro + micros) }

// identify takes an id that no living session has, and none that ended and may
// believe to hold something.
func (d *dialer) identify(ctx context.Context, conn *pgx.Conn) (int32, error) {
	for range 100 {
		id, taken := rand.Int32(), false
		err := conn.QueryRow(ctx, d.sql(`select case when not exists (select from {ns}_session where session = $1)
			then pg_try_advisory_lock(({class}), $1::int) else false end`), pgx.QueryExecModeExec, id).Scan(&taken)
		if err != nil {
			return 0, err
		}
		if taken {
			return id, nil
		}
	}
	return 0, errors.New("no session id is free")
}

// clear removes what dead sessions left.
func (d *dialer) clear(ctx context.Context, conn *pgx.Conn, id int32) error {
	for _, statement := range []string{`delete from {ns}_waiter where session = $1::int`,
		`delete from {ns}_watcher where session = $1::int`, statements[stSweep]} {
		if _, err := conn.Exec(ctx, d.sql(statement), pgx.QueryExecModeExec, id); err != nil {
			return err
		}
	}
	return nil
}

// endFormer ends former sessions of this driver, which the server may still believe
// to be there, and waits until they are gone. What they held is free: their claims
// were reported as lost.
func (d *dialer) endFormer(ctx context.Context, conn *pgx.Conn, former []int32) error {
	for _, id := range former {
		if _, err := conn.Exec(ctx, d.sql(statements[stEnd]), pgx.QueryExecModeExec, id); err != nil {
			return err
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1, $2)`, pgx.QueryExecModeExec, sessionClass(d.namespace), id)
			return err
		})
		if err != nil {
			return fmt.Errorf("the former session of this driver is still there: %w", err)
		}
		if _, err := conn.Exec(ctx, d.sql(`delete from {ns}_holder where session = $1::int`), pgx.QueryExecModeExec, id); err != nil {
			return err
		}
	}
	return nil
}

// prepare prepares every statement in one round trip.
func (d *dialer) prepare(ctx context.Context, conn *pgx.Conn) error {
	pipeline := conn.PgConn().StartPipeline(ctx)
	for name, text := range statements {
		pipeline.SendPrepare(name, d.sql(text), nil)
	}
	err := pipeline.Sync()
	for err == nil {
		var result any
		if result, err = pipeline.GetResults(); result == nil {
			break
		}
	}
	return errors.Join(err, pipeline.Close())
}
