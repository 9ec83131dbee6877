// Package databases gives each test of SQL code its own databases on a real PostgreSQL
// and MariaDB, by each client library that the drivers support. It contains only the SQL
// that it needs for that; tests must handle differences between databases.
//
//	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
//		t.Run("a row is claimed once", func(t *testing.T) {
//			t.Parallel()
//			db := open(t)
//			db.Exec(t, `create table account (id varchar(64) primary key)`)
//			…
//		})
//	})
package databases

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // for sql.Open

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// The clients.
const (
	Pgx          = "postgres by pgx"
	PgxStd       = "postgres by database/sql"
	Maria        = "mariadb"
	MariaInlined = "mariadb, interpolated, found rows" // parameters inside the statement; affected rows are the found ones
)

// All is every client.
var All = []string{Pgx, PgxStd, Maria, MariaInlined}

// DB is one database of one test, reached by one client. Its transactions are those
// of the driver. Their Native is the driver.SQL itself, so one test serves all
// clients.
type DB struct {
	driver.BeginnerAt[driver.SQL]
	Client  string
	Dialect driver.Dialect
	URL     string          // for Connect, also in another process
	Server  *testbed.Server // shared with other tests
}

var numbers atomic.Int64

// Each runs test for the named clients. Without names it runs one client of each system,
// chosen by the name of the test, or all with INTERLOCK_CLIENTS=all. All tests of the
// process share the servers. Each call of open creates another database, and the name of
// the test that calls it chooses the session mode on MariaDB.
func Each(t *testing.T, test func(t *testing.T, open func(testing.TB) *DB), clients ...string) {
	t.Helper()
	if len(clients) == 0 {
		clients = chosen(t.Name())
	}
	for _, sys := range systems {
		wanted := slices.DeleteFunc(slices.Clone(sys.clients), func(c string) bool {
			return !slices.Contains(clients, c)
		})
		if len(wanted) == 0 {
			continue
		}
		t.Run(string(sys.dialect), func(t *testing.T) {
			server := testbed.Shared(t, sys.start)
			for _, client := range wanted {
				t.Run(client, func(t *testing.T) {
					test(t, func(tb testing.TB) *DB { return create(tb, sys, server, client, pick(sys.modes, tb.Name())) })
				})
			}
		})
	}
}

// chosen returns the clients of a test that names none. All clients send the same statements
// and all tests use the same clients, so not each test needs each client.
func chosen(test string) (clients []string) {
	if os.Getenv("INTERLOCK_CLIENTS") == "all" {
		return All
	}
	for _, sys := range systems {
		clients = append(clients, pick(sys.clients, test))
	}
	return clients
}

// pick chooses one of all by a hash of name.
func pick(all []string, name string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name)) // never fails
	return all[int(sum.Sum32()>>8)%len(all)]
}

// Open creates a database on server for a client.
func Open(tb testing.TB, server *testbed.Server, client string) *DB {
	tb.Helper()
	for _, sys := range systems {
		if slices.Contains(sys.clients, client) {
			return create(tb, sys, server, client, "")
		}
	}
	tb.Fatalf("there is no client %q", client)
	return nil
}

type system struct {
	dialect driver.Dialect
	start   func(testing.TB, ...string) *testbed.Server
	library string
	clients []string
	modes   []string // of sessions, appended to URLs
	options string   // of the databases
	url     func(server, database string) string
}

var systems = []system{{
	dialect: driver.Postgres,
	start:   testbed.Postgres,
	library: "pgx",
	clients: []string{Pgx, PgxStd},
	modes:   []string{""},
	options: ` strategy file_copy`, // the default writes a copy of the template to the log, too
	url:     func(url, name string) string { return strings.Replace(url, "/postgres?", "/"+name+"?", 1) },
}, {
	dialect: driver.MariaDB,
	start:   testbed.MariaDB,
	library: "mysql",
	clients: []string{Maria, MariaInlined},
	modes:   Modes,
	url:     func(url, name string) string { return strings.Replace(url, "/test", "/"+name, 1) },
}}

// Modes are session settings of MariaDB users: the meaning of quotes and empty texts, the
// evaluation of assignments, padding of texts, and the time zone.
var Modes = []string{
	"",
	"?time_zone=%27-09:30%27&sql_mode=%27STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL%27",
	"?time_zone=%27-09:30%27&sql_mode=%27STRICT_TRANS_TABLES,ORACLE,SIMULTANEOUS_ASSIGNMENT%27",
	"?time_zone=%27-09:30%27&sql_mode=%27STRICT_TRANS_TABLES,ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH%27",
}

func create(tb testing.TB, sys system, server *testbed.Server, client, mode string) *DB {
	tb.Helper()
	name := fmt.Sprintf("test%d", numbers.Add(1))
	admin, err := sql.Open(sys.library, server.URL())
	if err != nil {
		tb.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.ExecContext(tb.Context(), "create database "+name+sys.options); err != nil {
		tb.Fatal(err)
	}
	d := &DB{Client: client, Dialect: sys.dialect, URL: sys.url(server.URL(), name) + mode, Server: server}
	d.BeginnerAt = d.Again(tb)
	return d
}

// Again opens the same database with separate connections.
func (d *DB) Again(tb testing.TB) driver.BeginnerAt[driver.SQL] {
	tb.Helper()
	db, closed, err := Connect(context.WithoutCancel(tb.Context()), d.Client, d.URL)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(closed)
	return db
}

// Collated returns another database of PostgreSQL's server. It orders texts as most databases do,
// by letters first; those of this package order them by bytes.
func (d *DB) Collated(tb testing.TB) *DB {
	tb.Helper()
	sys := systems[0]
	sys.options += ` template template0 locale_provider icu icu_locale 'en'`
	return create(tb, sys, d.Server, d.Client, "")
}

// Through returns the same database with separate connections through a proxy.
func (d *DB) Through(tb testing.TB, proxy *testbed.Proxy) *DB {
	tb.Helper()
	far := *d
	far.URL = strings.Replace(d.URL, d.Server.Addr(), proxy.Addr(), 1)
	far.BeginnerAt = far.Again(tb)
	return &far
}

// Connect opens a database by one of the clients, from any process.
func Connect(ctx context.Context, client, url string) (db driver.BeginnerAt[driver.SQL], closed func(), err error) {
	switch client {
	case Pgx:
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		return backend.Untyped(postgres.Pool(pool)), pool.Close, nil
	case PgxStd:
		return std("pgx", url, postgres.DB)
	case Maria:
		return std("mysql", url, mysql.DB)
	case MariaInlined:
		return std("mysql", With(url, "clientFoundRows=true&interpolateParams=true"), mysql.DB)
	}
	return nil, nil, fmt.Errorf("there is no client %q", client)
}

// With returns a URL with further options.
func With(url, options string) string {
	if strings.Contains(url, "?") {
		return url + "&" + options
	}
	return url + "?" + options
}

func std(library, url string, by func(*sql.DB) driver.BeginnerAt[*sql.Tx]) (driver.BeginnerAt[driver.SQL], func(), error) {
	db, err := sql.Open(library, url)
	if err != nil {
		return nil, nil, err
	}
	return backend.Untyped(by(db)), func() { db.Close() }, nil
}

// Do runs fn in a transaction and commits it. If either fails, Do ends the test.
func (d *DB) Do(tb testing.TB, fn func(ctx context.Context, db driver.SQL) error) {
	tb.Helper()
	if err := d.Try(tb.Context(), fn); err != nil {
		tb.Fatal(err)
	}
}

// Try runs fn in a transaction, and commits if fn returns nil. If fn ends the test, Try
// rolls back.
func (d *DB) Try(ctx context.Context, fn func(ctx context.Context, db driver.SQL) error) error {
	tx, err := d.Begin(ctx)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned {
			_ = tx.Rollback(ctx)
		}
	}()
	err = fn(ctx, tx)
	if returned = true; err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// Exec runs statements in one transaction.
func (d *DB) Exec(tb testing.TB, queries ...string) {
	tb.Helper()
	d.Do(tb, func(ctx context.Context, db driver.SQL) error {
		for _, q := range queries {
			if _, err := db.Exec(ctx, q); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
		return nil
	})
}

// Begun returns a transaction that the test ends, or that is rolled back after it.
func (d *DB) Begun(tb testing.TB, level driver.Isolation) driver.Tx[driver.SQL] {
	tb.Helper()
	tx, err := d.BeginAt(tb.Context(), level)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(tb.Context())) })
	return tx
}

// One returns the single value of query, in its own transaction, or the zero value if
// there is no row.
func One[V any](tb testing.TB, d *DB, query string, args ...any) (v V) {
	tb.Helper()
	d.Do(tb, func(ctx context.Context, db driver.SQL) (err error) {
		v, err = Value[V](ctx, db, query, args...)
		return err
	})
	return v
}

// Value returns the single value of query.
func Value[V any](ctx context.Context, db driver.SQL, query string, args ...any) (v V, err error) {
	err = db.Query(ctx, query, args, func(scan func(...any) error) error { return scan(&v) })
	return v, err
}
