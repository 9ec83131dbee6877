package bench

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func mariadbCases(tb testing.TB) []benchmark {
	const peer = "GET_LOCK"
	many := []compare.Goal{faster(peer, 0.5), tableFaster(peer, 0.4), tableFaster("commits", 0)}
	return distinct("mariadb", "one MariaDB that syncs to disk at each commit; pools of 32 connections; ", lazily(tb, startMariaDB), mariadbSides,
		map[int][]compare.Goal{
			1:  {faster(peer, 0), tableFaster(peer, 0), allocs("", 40), allocs(peer, 0)},
			16: many, 256: many,
		})
}

// startMariaDB starts a server that syncs to disk, with enough connections for a pool per side.
func startMariaDB(tb testing.TB, extra ...string) *testbed.Server {
	return testbed.MariaDB(tb, append([]string{"--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1", "--max-connections=900"}, extra...)...)
}

func mariadbSides(tb testing.TB, server *testbed.Server, l compare.Locks) []compare.Side {
	return []compare.Side{
		l.Side("interlock", fenced(tb, func() (driver.Fenced, error) {
			config, err := client.ParseDSN(server.URL())
			ok(tb, err)
			return mysql.Open(tb.Context(), config, &mysql.Options{TTL: ttl})
		})),
		l.Side("interlock table", fenced(tb, func() (driver.Fenced, error) {
			return mysql.OpenTable(tb.Context(), mariadbPool(tb, server, connections), &mysql.Options{TTL: ttl, Namespace: "rows"})
		})),
		l.Side("GET_LOCK", func() compare.Acquire { return getLock(mariadbPool(tb, server, connections)) }),
		commits(l.Clients, mariadbCommit(tb, mariadbPool(tb, server, connections))),
	}
}

// mariadbPool interpolates parameters, so that each statement is one round trip.
func mariadbPool(tb testing.TB, server *testbed.Server, connections int) *sql.DB {
	url, separator := server.URL(), "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	db, err := sql.Open("mysql", url+separator+"interpolateParams=true")
	ok(tb, err)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	tb.Cleanup(func() { ok(tb, db.Close()) })
	return db
}

// getLock returns a lock of a connection of the pool, which is kept until the release.
func getLock(db *sql.DB) compare.Acquire {
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return 0, nil, err
		}
		var got sql.NullInt64
		err = conn.QueryRowContext(ctx, `select get_lock(?, 30)`, name).Scan(&got)
		if err == nil && got.Int64 != 1 {
			err = errors.New("GET_LOCK did not get the lock")
		}
		if err != nil {
			return 0, nil, errors.Join(err, conn.Close())
		}
		return 0, compare.Release(func(ctx context.Context) error {
			_, err := conn.ExecContext(ctx, `do release_lock(?)`, name)
			return errors.Join(err, conn.Close())
		}), nil
	}
}

// mariadbCommit inserts a row and commits it.
func mariadbCommit(tb testing.TB, db *sql.DB) commit {
	_, err := db.ExecContext(tb.Context(), `create table if not exists one (id bigint primary key, text varchar(200)) engine = InnoDB`)
	ok(tb, err)
	return func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, `insert into one values (?, ?)`, fresh.Add(1), filler)
		return err
	}
}
