package doctor

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/backend"
)

type postgresProbe struct {
	conn      *pgx.Conn
	table     bool // locks are rows, which any pooler may serve
	namespace string
}

func dialPostgres(ctx context.Context, u *backend.URL, _ Options) (probe, error) {
	c, err := pgx.Connect(ctx, u.Client())
	if err != nil {
		return nil, err
	}
	return &postgresProbe{c, u.Setting("mode") == "table", namespace(u)}, nil
}

func (p *postgresProbe) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx) // nothing is lost with it
}

func (p *postgresProbe) ping(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol)
	return err
}

// postgresFacts are what the server says of itself.
type postgresFacts struct {
	version, connections, limit, async, sync int
	standby, readOnly, pooled                bool
	fsync, pages, commit, encoding, wal      string
	idle, idleTransaction                    int // milliseconds; 0 is no limit
	now                                      time.Time
}

func (p *postgresProbe) inspect(ctx context.Context, r *Report) error {
	var f postgresFacts
	var process uint32
	sent := time.Now()
	err := p.conn.QueryRow(ctx, `select clock_timestamp(), pg_backend_pid(), current_setting('server_version_num')::int,
		pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on', current_setting('server_encoding'),
		current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('wal_level'),
		coalesce((select setting::int from pg_settings where name = 'idle_session_timeout'), 0),
		coalesce((select setting::int from pg_settings where name = 'idle_in_transaction_session_timeout'), 0),
		(select count(*) from pg_stat_activity where backend_type = 'client backend'), current_setting('max_connections')::int
			- current_setting('superuser_reserved_connections')::int,
		(select count(*) from pg_stat_replication where sync_state = 'async'),
		(select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum'))`, pgx.QueryExecModeSimpleProtocol).
		Scan(&f.now, &process, &f.version, &f.standby, &f.readOnly, &f.encoding, &f.fsync, &f.pages, &f.commit, &f.wal,
			&f.idle, &f.idleTransaction, &f.connections, &f.limit, &f.async, &f.sync)
	if err != nil {
		return err
	}
	received := time.Now()
	f.pooled = process != p.conn.PgConn().PID()
	postgresFindings(r, f, p.table)
	r.skew(f.now, sent, received, 0)
	if err := p.rights(ctx, r); err != nil {
		return err
	}
	return p.tokens(ctx, r, f.now)
}

// tokens looks at the sequence of session locks, or at the rows.
func (p *postgresProbe) tokens(ctx context.Context, r *Report, now time.Time) error {
	name, query := p.namespace+"_token", `select last_value from `
	if p.table {
		name, query = p.namespace+"_lease", `select coalesce(max(counter), 0) from `
	}
	name = pgx.Identifier{name}.Sanitize()
	var there bool
	if err := p.conn.QueryRow(ctx, `select to_regclass($1) is not null`, pgx.QueryExecModeSimpleProtocol, name).Scan(&there); err != nil || !there {
		return err
	}
	var counter int64
	err := p.conn.QueryRow(ctx, query+name, pgx.QueryExecModeSimpleProtocol).Scan(&counter)
	r.tokens("postgres.tokens", counter, err, now)
	return ctx.Err()
}

func postgresFindings(r *Report, f postgresFacts, table bool) {
	r.addIf(f.version < 140000, "postgres.version", Critical, "version %d.%d", f.version/10000, f.version%10000)
	r.addIf(f.standby || f.readOnly, "postgres.role", Critical, "in recovery %v, read-only by default %v", f.standby, f.readOnly)
	r.addIf(f.encoding != "UTF8", "postgres.encoding", Critical, "server_encoding %s", f.encoding)
	durable := f.fsync == "on" && f.pages == "on" && (f.commit != "off" || !table)
	r.addIf(!durable, "postgres.durability", Warning, "fsync %s, full_page_writes %s, synchronous_commit %s", f.fsync, f.pages, f.commit)
	r.addIf(f.async > 0, "postgres.standbys", Warning, "%d asynchronous and %d synchronous standbys, wal_level %s", f.async, f.sync, f.wal)
	pooler := "none is seen"
	if f.pooled {
		pooler = "one answers for the server"
	}
	r.addIf(f.pooled && !table, "postgres.pooler", Warning, "pooler: %s", pooler)
	r.addIf(f.idle > 0 && f.idle < 1000, "postgres.idle", Warning, "idle_session_timeout %v, idle_in_transaction_session_timeout %v",
		time.Duration(f.idle)*time.Millisecond, time.Duration(f.idleTransaction)*time.Millisecond)
	r.addIf(f.connections*10 > f.limit*8, "postgres.connections", Warning, "%d of %d connections are in use", f.connections, f.limit)
}
