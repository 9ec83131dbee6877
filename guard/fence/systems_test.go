package fence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// system is one kind of database, and how it says what the tests need.
type system struct {
	name    string
	start   func(testing.TB, ...string) *testbed.Server
	clients map[string]func(*testing.T, string) client
	// admin runs a statement outside any transaction.
	admin func(t *testing.T, url, query string)
	// databaseURL is the server's URL with another database.
	databaseURL func(url, name string) string

	// Options of a URL.
	isolation  map[string]string // by the level's name
	impatience string            // wait for locks a second at most

	// Statements and parts of them.
	quote     func(name string) string
	longest   int    // bytes of a table's name
	sleep     string // for 30 seconds
	timedOut  string // SQLSTATE of a statement that ran for too long
	waiting   string // how many sessions of this database wait for a lock
	session   string // its number
	sessions  string // how many there are of that number
	idleLimit string // in ms
	audit     string // the rebases, in one text
	// snapshots says that InnoDB lets a transaction write on what it cannot see.
	snapshots bool
}

var systems = []*system{{
	name:    "postgres",
	start:   testbed.Postgres,
	clients: map[string]func(*testing.T, string) client{"pgx": openPgx, "database-sql": openStd},
	admin: func(t *testing.T, url, query string) {
		_, err := openPool(t, url).Exec(t.Context(), query)
		ok(t, err)
	},
	databaseURL: func(url, name string) string { return strings.Replace(url, "/postgres?", "/"+name+"?", 1) },
	isolation: map[string]string{"repeatable read": "&default_transaction_isolation=repeatable%20read",
		"serializable": "&default_transaction_isolation=serializable"},
	impatience: "&lock_timeout=1000",
	quote:      func(name string) string { return `"` + name + `"` },
	longest:    56,
	sleep:      `select pg_sleep(30)`,
	timedOut:   "57014",
	waiting:    `select concat(count(*)) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
	session:    `select pg_backend_pid()`,
	sessions:   `select concat(count(*)) from pg_stat_activity where pid = %d`,
	idleLimit:  `select setting::bigint from pg_settings where name = 'idle_in_transaction_session_timeout'`,
	audit: `select string_agg(concat_ws('|', resource, from_token, to_token, reason, rebased_by), ';' order by id)
		from interlock_fence_rebase where abs(extract(epoch from rebased_at - now())) < 3600`,
}, {
	name:    "mariadb",
	start:   testbed.MariaDB,
	clients: map[string]func(*testing.T, string) client{"prepared": openMaria, "interpolated, found rows": openMariaFound},
	admin: func(t *testing.T, url, query string) {
		_, err := openDB(t, "mysql", url).ExecContext(t.Context(), query)
		ok(t, err)
	},
	databaseURL: func(url, name string) string {
		return strings.Replace(url, "/test", "/"+name+"?multiStatements=false", 1)
	},
	isolation: map[string]string{"repeatable read": "&tx_isolation=%27REPEATABLE-READ%27",
		"serializable": "&tx_isolation=%27SERIALIZABLE%27", "read committed": "&tx_isolation=%27READ-COMMITTED%27"},
	impatience: "&innodb_lock_wait_timeout=1",
	quote:      func(name string) string { return "`" + name + "`" },
	longest:    57,
	sleep:      `select sleep(30)`,
	timedOut:   "70100",
	// The lists of transactions and waits are renewed only if nobody has looked for
	// a tenth of a second. A statement that takes longer than that waits.
	waiting: `select concat(count(*)) from information_schema.processlist
		where db = database() and id <> connection_id() and command in ('Query', 'Execute') and time_ms > 100`,
	session:   `select connection_id()`,
	sessions:  `select concat(count(*)) from information_schema.processlist where id = %d`,
	idleLimit: `select 1000 * @@idle_transaction_timeout`,
	audit: `select group_concat(concat_ws('|', resource, from_token, to_token, reason, rebased_by) order by id separator ';')
		from interlock_fence_rebase where abs(timestampdiff(second, rebased_at, utc_timestamp())) < 3600`,
	snapshots: true,
}}

func openPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func openPgx(t *testing.T, url string) client {
	t.Helper()
	return over(postgres.Pool(openPool(t, url)), postgres.Tx)
}

func openStd(t *testing.T, url string) client {
	t.Helper()
	return over(postgres.DB(openDB(t, "pgx", url)), postgres.StdTx)
}

func openDB(t *testing.T, driver, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, url)
	ok(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func openMaria(t *testing.T, url string) client {
	t.Helper()
	return over(mysql.DB(openDB(t, "mysql", url)), mysql.Tx)
}

// openMariaFound counts the rows that were found, not those that were changed,
// and sends parameters inside the statement.
func openMariaFound(t *testing.T, url string) client {
	t.Helper()
	return openMaria(t, url+"&clientFoundRows=true&interpolateParams=true")
}

// operator runs a statement outside any transaction.
func (w world) operator(t *testing.T, query string) {
	t.Helper()
	w.admin(t, w.url, query)
}

// TestModesOfMariaDB: the user's sql_mode changes what quotes and empty texts mean.
func TestModesOfMariaDB(t *testing.T) {
	url := testbed.MariaDB(t).URL()
	for i, mode := range []string{"STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL", "ORACLE,SIMULTANEOUS_ASSIGNMENT",
		"ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH"} {
		c := openMaria(t, url+"?interpolateParams=true&time_zone=%27-09:30%27&sql_mode=%27"+mode+"%27")
		tx, err := c.begin(t.Context())
		ok(t, err)
		marks, resource := fence.Table{Name: fmt.Sprint("marks", i)}, `it's "\`
		ok(t, marks.Create(t.Context(), tx))
		_, err = tx.Exec(t.Context(), "select 1")
		ok(t, err)
		ok(t, marks.Enter(t.Context(), tx, resource, 7<<12, "alice"))
		if err := marks.Enter(t.Context(), tx, resource, 6<<12, ""); !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("%s: %v", mode, err)
		}
		_, err = marks.Rebase(t.Context(), tx, "another", 5<<12, "why", "bob")
		ok(t, err)
		m, err := marks.Show(t.Context(), tx, resource)
		if err != nil || m.Token != 7<<12 || m.Source != "alice" || time.Since(m.Raised).Abs() > time.Hour {
			t.Errorf("%s: %+v, %v", mode, m, err)
		}
		ok(t, tx.Commit(t.Context()))
	}
}
