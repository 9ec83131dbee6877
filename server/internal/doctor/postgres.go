package doctor

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/postgres"
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

func (p *postgresProbe) close() { closeConn(p.conn) }

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // it has no state to lose
}

func (p *postgresProbe) ping(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol)
	return err
}

// postgresFacts are the server's reports about itself.
type postgresFacts struct {
	version, connections, limit int
	async, sync, hidden         int    // standbys; nothing is known of the hidden ones
	wanted                      string // synchronous_standby_names
	standby, readOnly           bool
	pooler                      pooling
	fsync, pages, commit        string
	encoding, wal               string
	idle, idleTransaction       int // milliseconds; 0 is no limit
	now                         time.Time
}

// pooling is what a pooler assigns to a client.
type pooling int

const (
	unpooled           pooling = iota // there is no pooler
	pooledSessions                    // or unknown
	pooledTransactions                // a process of the server for each transaction
)

func (p *postgresProbe) inspect(ctx context.Context, r *Report) error {
	var f postgresFacts
	var process uint32
	sent := time.Now()
	err := p.conn.QueryRow(ctx, `with r as (select sync_state from pg_stat_replication where pid not in
			(select active_pid from pg_replication_slots where slot_type = 'logical' and active_pid is not null))
		select clock_timestamp(), pg_backend_pid(), current_setting('server_version_num')::int,
		pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on', current_setting('server_encoding'),
		current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('wal_level'),
		coalesce((select setting::int from pg_settings where name = 'idle_session_timeout'), 0),
		coalesce((select setting::int from pg_settings where name = 'idle_in_transaction_session_timeout'), 0),
		(select count(*) from pg_stat_activity where coalesce(backend_type = 'client backend', datid is not null)),
		current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
		current_setting('synchronous_standby_names'),`+standbys, pgx.QueryExecModeSimpleProtocol).
		Scan(&f.now, &process, &f.version, &f.standby, &f.readOnly, &f.encoding, &f.fsync, &f.pages, &f.commit, &f.wal,
			&f.idle, &f.idleTransaction, &f.connections, &f.limit, &f.wanted, &f.async, &f.sync, &f.hidden)
	if err != nil {
		return err
	}
	received := time.Now()
	if process != p.conn.PgConn().PID() {
		f.pooler = pooledSessions
		if !p.table {
			f.pooler = p.pooling(ctx, process)
		}
	}
	postgresFindings(r, f, p.table)
	r.skew(f.now, sent, received, 0)
	if err := p.rights(ctx, r); err != nil {
		return err
	}
	if err := r.tables(ctx, "postgres.tables", p.namespace, catalog{driver.Postgres, func(ctx context.Context, query string) (rows, error) {
		return p.conn.Query(ctx, query, pgx.QueryExecModeSimpleProtocol)
	}}); err != nil {
		return err
	}
	return p.tokens(ctx, r, f.now)
}

// standbys counts those that are synchronous, those that are not, and those whose state this role
// may not see. A subscriber of logical replication does not take over.
const standbys = `
	(select count(*) filter (where sync_state not in ('sync', 'quorum')) from r),
	(select count(*) filter (where sync_state in ('sync', 'quorum')) from r),
	(select count(*) filter (where sync_state is null) from r)`

// tokens checks the sequence of session locks, or the rows.
func (p *postgresProbe) tokens(ctx context.Context, r *Report, now time.Time) error {
	name, query := p.namespace+"_token", `select last_value from `
	if p.table {
		name, query = p.namespace+"_lease", `select coalesce(max(counter), 0) from `
	}
	name = pgx.Identifier{name}.Sanitize()
	var exists bool
	if err := p.conn.QueryRow(ctx, `select to_regclass($1) is not null`, pgx.QueryExecModeSimpleProtocol, name).Scan(&exists); err != nil || !exists {
		return err
	}
	var counter int64
	err := p.conn.QueryRow(ctx, query+name, pgx.QueryExecModeSimpleProtocol).Scan(&counter)
	r.tokens("postgres.tokens", counter, err, now)
	return ctx.Err()
}

func postgresFindings(r *Report, f postgresFacts, table bool) {
	r.addIf(f.version < 140000, "postgres.version", Critical, "version %d.%d", f.version/10000, f.version%10000)
	r.addIf(f.standby, "postgres.role", Critical, "in recovery %v", f.standby)
	severity := map[bool]Severity{true: Critical, false: Warning}[table] // sessions of locks turn it off
	r.addIf(f.readOnly, "postgres.readonly", severity, "read-only by default %v", f.readOnly)
	r.addIf(f.encoding != "UTF8", "postgres.encoding", Critical, "server_encoding %s", f.encoding)
	durable := f.fsync == "on" && f.pages == "on" && (f.commit != "off" || !table)
	r.addIf(!durable, "postgres.durability", Warning, "fsync %s, full_page_writes %s, synchronous_commit %s", f.fsync, f.pages, f.commit)
	postgresReplication(r, f, table)
	severity = map[pooling]Severity{pooledSessions: Info, pooledTransactions: Critical}[f.pooler]
	r.addIf(!table, "postgres.pooler", severity, "pooler: %s", [...]string{"none is seen", "one answers for the server",
		"one answers for the server, in transaction mode"}[f.pooler])
	r.addIf(f.idle > 0 && f.idle < 1000, "postgres.idle", Warning, "idle_session_timeout %v, idle_in_transaction_session_timeout %v",
		time.Duration(f.idle)*time.Millisecond, time.Duration(f.idleTransaction)*time.Millisecond)
	r.addIf(f.connections*10 > f.limit*8, "postgres.connections", Warning, "%d of %d connections are in use", f.connections, f.limit)
}

// postgresReplication checks whether a standby may lack what was committed. Session locks always
// wait for synchronous ones.
func postgresReplication(r *Report, f postgresFacts, table bool) {
	late := table && f.sync > 0 && (f.commit == "off" || f.commit == "local")
	severity := OK
	switch {
	case f.async > 0 || late || f.hidden > 0 && f.wanted == "":
		severity = Warning
	case f.hidden > 0:
		severity = Info
	}
	r.add("postgres.standbys", severity, "%d asynchronous and %d synchronous standbys, %d of which this role may see nothing; wal_level %s, synchronous_commit %s",
		f.async, f.sync, f.hidden, f.wal, f.commit)
}

// pooling asks whether another connection gets the process of the server that served this one, as in
// transaction mode. Others may use the pooler too, so it asks a few times.
func (p *postgresProbe) pooling(ctx context.Context, process uint32) pooling {
	ctx, cancel := context.WithTimeout(ctx, memberBound) // without a free process it waits
	defer cancel()
	other, err := pgx.ConnectConfig(ctx, p.conn.Config())
	if err != nil {
		return pooledSessions
	}
	defer closeConn(other)
	for range 8 {
		var ours, theirs uint32
		if serving(ctx, p.conn, &ours) != nil || serving(ctx, other, &theirs) != nil {
			break
		}
		if ours != process || theirs == ours {
			return pooledTransactions
		}
	}
	return pooledSessions
}

// serving reads the process that serves a connection.
func serving(ctx context.Context, c *pgx.Conn, process *uint32) error {
	return c.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(process)
}

// relationRights takes names of tables and sequences. It returns for each whether it
// exists, whether the role owns it, and the rights for locks that the role lacks.
const relationRights = `select r.name, c.oid is not null, coalesce(pg_has_role(c.relowner, 'usage'), false),
	array_to_string(array(select p from unnest(case c.relkind when 'S' then array['usage', 'select', 'update']
		else array['select', 'insert', 'update', 'delete'] end) p
		where not case c.relkind when 'S' then has_sequence_privilege(c.oid, p) else has_table_privilege(c.oid, p) end), ' and ')
	from unnest($1::text[]) r(name) left join pg_class c on c.oid = to_regclass(r.name)`

// mayCreate returns the schema for new tables, empty if there is none, and whether the
// role may create tables there.
const mayCreate = `select coalesce(current_schema(), ''), coalesce(has_schema_privilege(current_schema(), 'create'), false)`

var (
	relation = regexp.MustCompile(`^create (?:unlogged )?(?:table|sequence) if not exists (\S+)`)
	indexed  = regexp.MustCompile(`^create index if not exists \S+ on (\S+)`)
)

// relations returns the tables and sequences of locks, and those with indexes.
func (p *postgresProbe) relations() (names, withIndex []string) {
	kept := []string{"holder", "waiter", "session", "watcher", "break", "token", "reserved"}
	if p.table {
		kept = []string{"lease", "lease_break"}
	}
	for _, s := range postgres.Schema(p.namespace) {
		for pattern, to := range map[*regexp.Regexp]*[]string{relation: &names, indexed: &withIndex} {
			if m := pattern.FindStringSubmatch(s); m != nil && slices.Contains(kept, strings.TrimPrefix(m[1], p.namespace+"_")) {
				*to = append(*to, m[1])
			}
		}
	}
	return names, withIndex
}

// rights reports the role's missing rights to use the tables of locks, or to create
// missing ones, as the driver does when it opens.
func (p *postgresProbe) rights(ctx context.Context, r *Report) error {
	names, withIndex := p.relations()
	rows, err := p.conn.Query(ctx, relationRights, pgx.QueryExecModeSimpleProtocol, names)
	if err != nil {
		return err
	}
	var lacks, absent, foreign []string
	var name, lacking string
	var exists, owned bool
	_, err = pgx.ForEachRow(rows, []any{&name, &exists, &owned, &lacking}, func() error {
		switch {
		case !exists:
			absent = append(absent, name)
		case lacking != "":
			lacks = append(lacks, lacking+" on "+name)
		}
		if exists && !owned && slices.Contains(withIndex, name) {
			foreign = append(foreign, name)
		}
		return nil
	})
	if err == nil && len(absent) > 0 {
		var create string
		create, err = p.creation(ctx, absent, foreign)
		lacks = append(lacks, create)
	}
	lacks = slices.DeleteFunc(lacks, func(s string) bool { return s == "" })
	r.addIf(len(lacks) > 0, "postgres.rights", Critical, "rights on the tables of locks that are missing: %s", joinOrNone(lacks))
	return err
}

// creation returns the rights that the role lacks to create tables. Only a table's owner
// may create its index, even if the index exists.
func (p *postgresProbe) creation(ctx context.Context, absent, foreign []string) (lacks string, err error) {
	var schema string
	var may bool
	err = p.conn.QueryRow(ctx, mayCreate, pgx.QueryExecModeSimpleProtocol).Scan(&schema, &may)
	switch {
	case err != nil:
		return "", err
	case schema == "":
		return "a schema of the search_path to create tables in", nil
	case !may:
		return "create on schema " + schema + " for " + joinOrNone(absent), nil
	case len(foreign) > 0:
		return "ownership of " + joinOrNone(foreign) + " to create " + joinOrNone(absent), nil
	}
	return "", nil
}
