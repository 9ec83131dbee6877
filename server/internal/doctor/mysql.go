package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver"
	opener "github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

type mysqlProbe struct {
	db        *sql.DB
	table     bool // locks are rows
	namespace string
}

func dialMySQL(_ context.Context, u *opener.URL, _ Options) (probe, error) {
	cfg, err := client.ParseDSN("tcp(" + u.Hosts()[0] + ")/?" + u.Query().Encode())
	if err != nil {
		return nil, errors.New("the MariaDB URL is invalid: check its options")
	}
	cfg.User, cfg.Passwd = account(u)
	cfg.DBName, cfg.InterpolateParams, cfg.Logger = strings.TrimPrefix(u.Path(), "/"), true, &client.NopLogger{}
	connector, err := client.NewConnector(cfg)
	if err != nil {
		return nil, errors.New("the MariaDB URL is invalid: check its options")
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return &mysqlProbe{db, u.Setting("mode") == "table", namespace(u)}, nil
}

func (p *mysqlProbe) close() { _ = p.db.Close() }

func (p *mysqlProbe) ping(ctx context.Context) error { return p.db.PingContext(ctx) }

// mysqlFacts are the server's reports about itself.
type mysqlFacts struct {
	version                                              string
	flush, binlog, sync, readOnly, wait, limit, replicas int
	galera, method, doublewrite                          string
	connections                                          int
}

func (p *mysqlProbe) inspect(ctx context.Context, r *Report) error {
	var f mysqlFacts
	var micros int64
	sent := time.Now()
	err := p.db.QueryRowContext(ctx, `select cast(unix_timestamp(now(6)) * 1000000 as signed), @@version, @@innodb_flush_log_at_trx_commit,
		@@log_bin, @@sync_binlog, @@read_only, @@global.wait_timeout, @@max_connections,
		coalesce(@@innodb_flush_method, ''), @@innodb_doublewrite,
		(select cast(variable_value as int) from information_schema.global_status where variable_name = 'Slaves_connected'),
		(select cast(variable_value as int) from information_schema.global_status where variable_name = 'Threads_connected')`).
		Scan(&micros, &f.version, &f.flush, &f.binlog, &f.sync, &f.readOnly, &f.wait, &f.limit, &f.method, &f.doublewrite, &f.replicas, &f.connections)
	if err != nil {
		return err
	}
	received := time.Now()
	var name string
	err = p.db.QueryRowContext(ctx, `show variables like 'wsrep_on'`).Scan(&name, &f.galera)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	mysqlFindings(r, f, p.table)
	r.skew(time.UnixMicro(micros), sent, received, 0)
	if err := p.rights(ctx, r); err != nil {
		return err
	}
	former, err := p.formerHolders(ctx)
	if err != nil {
		return err
	}
	if err := r.tables(ctx, "mysql.tables", p.namespace, catalog{driver.MariaDB, func(ctx context.Context, query string) (rows, error) {
		return p.db.QueryContext(ctx, query)
	}}, former...); err != nil {
		return err
	}
	return p.tokens(ctx, r, time.UnixMicro(micros))
}

// formerHolders returns the table of session locks if it is of a former version, which has the same columns.
func (p *mysqlProbe) formerHolders(ctx context.Context) (wrong []string, err error) {
	n, name := 0, p.namespace+"_holder"
	err = p.db.QueryRowContext(ctx, `select count(*) from information_schema.columns where table_schema = database() and table_name = ?
		and column_name = 'counter' and extra <> 'auto_increment'`, name).Scan(&n)
	if n > 0 && !p.table {
		wrong = []string{name + " (locks) draws no counters, drop it while no program uses it"}
	}
	return wrong, err
}

// noTable is MariaDB's error number for a missing table.
const noTable = 1146

// tokens checks the rows of locks, and the counter that is above those of missing ones.
func (p *mysqlProbe) tokens(ctx context.Context, r *Report, now time.Time) error {
	rows, floor := p.namespace+"_holder", "reserved"
	if p.table {
		rows, floor = p.namespace+"_lease", "swept"
	}
	var counter int64
	err := p.db.QueryRowContext(ctx, fmt.Sprintf("select greatest(coalesce((select max(counter) from `%s`), 0), "+
		"coalesce((select max(counter) from `%s_%s`), 0))", rows, rows, floor)).Scan(&counter)
	var refused *client.MySQLError
	if errors.As(err, &refused) && refused.Number == noTable {
		return nil
	}
	r.tokens("mysql.tokens", counter, err, now)
	return ctx.Err()
}

func mysqlFindings(r *Report, f mysqlFacts, table bool) {
	var major, minor int
	_, err := fmt.Sscanf(f.version, "%d.%d", &major, &minor)
	old := err != nil || !strings.Contains(f.version, "MariaDB") || major < 10 || major == 10 && minor < 5
	r.addIf(old, "mysql.version", Critical, "version %s", f.version)
	r.addIf(f.readOnly != 0, "mysql.role", Critical, "read_only %d", f.readOnly)
	unsynced := strings.EqualFold(f.method, "nosync") || strings.EqualFold(f.method, "littlesync") || f.doublewrite == "0" || f.doublewrite == "OFF"
	durable := (f.flush == 1 || f.flush == 3) && (f.binlog == 0 || f.sync == 1) && !unsynced
	r.addIf(!durable, "mysql.durability", Warning, "innodb_flush_log_at_trx_commit %d, innodb_flush_method %s, innodb_doublewrite %s, log_bin %d, sync_binlog %d",
		f.flush, f.method, f.doublewrite, f.binlog, f.sync)
	galera := Critical
	if table {
		galera = Warning
	}
	r.addIf(f.galera == "ON", "mysql.galera", galera, "wsrep_on %q", f.galera)
	r.addIf(f.replicas > 0, "mysql.replicas", Warning, "%d replicas, which follow asynchronously", f.replicas)
	r.addIf(f.wait < 60, "mysql.wait", Info, "wait_timeout %d s", f.wait)
	r.addIf(f.connections*10 > f.limit*8, "mysql.connections", Warning, "%d of %d connections are in use", f.connections, f.limit)
}

var createsTable = regexp.MustCompile(`^create table if not exists (\S+) \(\s*(\w+)`)

// rights reports the user's missing rights to use the tables of locks, or to create
// missing ones, as the driver does when it opens. The server checks the rights of a
// statement when it prepares it; nothing is executed.
func (p *mysqlProbe) rights(ctx context.Context, r *Report) error {
	var lacks, create []string
	absent := false
	for _, s := range mysql.Schema(p.namespace) {
		m := createsTable.FindStringSubmatch(s)
		if m == nil || !p.uses(m[1]) {
			continue
		}
		found := 0
		if err := p.db.QueryRowContext(ctx, `select count(*) from information_schema.tables
			where table_schema = database() and table_name = ?`, m[1]).Scan(&found); err != nil {
			return err
		}
		absent = absent || found == 0
		missing, err := p.lacking(ctx, "create", s)
		if err != nil {
			return err
		}
		if missing != "" {
			create = append(create, missing+" on "+m[1])
		}
		missing, err = p.lacking(ctx, "select", "select 1 from "+m[1], "insert", "insert into "+m[1]+" () values ()",
			"update", "update "+m[1]+" set "+m[2]+" = "+m[2], "delete", "delete from "+m[1])
		if err != nil {
			return err
		}
		if missing != "" {
			lacks = append(lacks, missing+" on "+m[1])
		}
	}
	if absent {
		lacks = append(lacks, create...)
	}
	r.addIf(len(lacks) > 0, "mysql.rights", Critical, "rights on the tables of locks that are missing: %s", joinOrNone(lacks))
	return nil
}

// uses reports whether locks of the URL's mode use a table.
func (p *mysqlProbe) uses(table string) bool {
	kind, own := strings.CutPrefix(table, p.namespace+"_")
	lease := strings.HasPrefix(kind, "lease")
	return own && (p.table && lease || !p.table && (strings.HasPrefix(kind, "holder") || kind == "break"))
}

// lacking prepares statements, each after the name of its right, and returns the names of
// those that the server denies.
func (p *mysqlProbe) lacking(ctx context.Context, statements ...string) (string, error) {
	var lacks []string
	for i := 0; i < len(statements); i += 2 {
		prepared, err := p.db.PrepareContext(ctx, statements[i+1])
		var refused *client.MySQLError
		switch {
		case err == nil:
			_ = prepared.Close() // the connection ends with the examination
		case !errors.As(err, &refused):
			return "", err
		case backend.Forbidden(err):
			lacks = append(lacks, statements[i])
		case refused.Number != noTable:
			return "", err
		}
	}
	return strings.Join(lacks, " and "), nil
}
