package rowlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

type body = func(ctx context.Context, tx driver.SQL, locked []string) error

// client is one way to reach one database.
type client struct {
	// scope is rowlock.Tx.
	scope func(ctx context.Context, r rowlock.Rows, keys []string, o *rowlock.Options, fn body) error
	begin func(ctx context.Context) (transaction, error)
}

type transaction interface {
	driver.SQL
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// over makes a client of T's transactions, of which lend lends one.
func over[T any](db driver.Beginner[T], lend func(T) driver.SQL) client {
	return client{
		scope: func(ctx context.Context, r rowlock.Rows, keys []string, o *rowlock.Options, fn body) error {
			return rowlock.Tx(ctx, db, r, keys, o, func(ctx context.Context, tx T, locked []string) error {
				return fn(ctx, lend(tx), locked)
			})
		},
		begin: func(ctx context.Context) (transaction, error) { return db.Begin(ctx) },
	}
}

// world is one database with five accounts of 100 and ten seats.
type world struct {
	client
	address string // of the server
	through func(t *testing.T, address string) world
}

var databases atomic.Int64

func TestPostgres(t *testing.T) {
	server := testbed.Postgres(t)
	for name, open := range map[string]func(*testing.T, string) client{"pgx": openPgx, "database-sql": openStd} {
		runAll(t, name, func(t *testing.T) world {
			database := fmt.Sprintf("test%d", databases.Add(1))
			createDatabase(t, "pgx", server.URL(), database)
			var w world
			w.address = server.Addr()
			w.through = func(t *testing.T, address string) world {
				url := strings.Replace(server.URL(), "/postgres?", "/"+database+"?", 1)
				far := w
				far.client = open(t, strings.Replace(url, server.Addr(), address, 1))
				return far
			}
			return w.through(t, server.Addr())
		})
	}
}

func TestMariaDB(t *testing.T) {
	server := testbed.MariaDB(t)
	runAll(t, "database-sql", func(t *testing.T) world {
		database := fmt.Sprintf("test%d", databases.Add(1))
		createDatabase(t, "mysql", server.URL(), database)
		var w world
		w.address = server.Addr()
		w.through = func(t *testing.T, address string) world {
			far := w
			far.client = openMySQL(t, "root@tcp("+address+")/"+database)
			return far
		}
		return w.through(t, server.Addr())
	})
}

func openMySQL(t *testing.T, dsn string) client {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return over(mysql.DB(db), mysql.Tx)
}

func runAll(t *testing.T, name string, open func(*testing.T) world) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, world)
	}{
		{"rows are locked in the order of their keys, and no others", testOrder},
		{"no wait, a bounded wait, and skipping", testModes},
		{"the bound of a wait is for the statement only", testWaitIsForTheStatementOnly},
		{"any order of names, no deadlock, no lost update", testAnyOrder},
		{"a scope warns, and ends", testMaxHold},
		{"the waits for further rows are part of the scope", testMaxHoldBoundsWaits},
		{"the server ends the wait of who is cut off", testCutOffWhileWaiting},
		{"who stands still is rolled back by the server", testStopped},
		{"errors and panics roll back", testRollsBack},
		{"a queue's workers skip each other's rows", testClauseForAQueue},
		{"integers are keys", testIntegerKeys},
		{"a lost commit is uncertain", testLostReply},
		{"keys and names are checked", testTooMany},
	} {
		t.Run(name+"/"+tt.name, func(t *testing.T) {
			w := open(t)
			w.exec(t, "create table account (id varchar(20) primary key, balance bigint not null)",
				"create table seat (number bigint primary key)",
				"insert into account values ('a', 100), ('b', 100), ('c', 100), ('d', 100), ('e', 100)",
				"insert into seat values (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)")
			tt.test(t, w)
		})
	}
}

func openPgx(t *testing.T, url string) client {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return over(postgres.Pool(pool), postgres.Tx)
}

func openStd(t *testing.T, url string) client {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return over(postgres.DB(db), postgres.StdTx)
}

func createDatabase(t *testing.T, client, url, name string) {
	t.Helper()
	db, err := sql.Open(client, url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "create database "+name); err != nil {
		t.Fatal(err)
	}
}

// in runs fn in a transaction and rolls it back.
func (c client) in(t *testing.T, fn func(ctx context.Context, tx driver.SQL)) {
	t.Helper()
	tx, err := c.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	fn(t.Context(), tx)
}

func (c client) exec(t *testing.T, queries ...string) {
	t.Helper()
	tx, err := c.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queries {
		if _, err := tx.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (c client) number(t *testing.T, query string) (n int64) {
	t.Helper()
	c.in(t, func(ctx context.Context, tx driver.SQL) {
		if err := tx.Query(ctx, query, nil, func(scan func(...any) error) error { return scan(&n) }); err != nil {
			t.Fatal(err)
		}
	})
	return n
}

func (c client) lockTimeout(t *testing.T, tx driver.SQL) (value string) {
	t.Helper()
	query := "select current_setting('lock_timeout')"
	if tx.Dialect() == driver.MariaDB {
		query = "select cast(@@innodb_lock_wait_timeout as char)"
	}
	if err := tx.Query(t.Context(), query, nil, func(scan func(...any) error) error { return scan(&value) }); err != nil {
		t.Fatal(err)
	}
	return value
}

func (c client) balance(ctx context.Context, tx driver.SQL, id string) (balance int64, err error) {
	parameter := map[driver.Dialect]string{driver.Postgres: "$1", driver.MariaDB: "?"}[tx.Dialect()]
	err = tx.Query(ctx, "select balance from account where id = "+parameter, []any{id},
		func(scan func(...any) error) error { return scan(&balance) })
	return balance, err
}

func (c client) set(ctx context.Context, tx driver.SQL, id string, balance int64) error {
	query := "update account set balance = $2 where id = $1"
	args := []any{id, balance}
	if tx.Dialect() == driver.MariaDB {
		query, args = "update account set balance = ? where id = ?", []any{balance, id}
	}
	_, err := tx.Exec(ctx, query, args...)
	return err
}
