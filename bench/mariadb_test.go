package bench

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func mariadbCases(tb testing.TB) []benchmark {
	server := sync.OnceValue(func() *testbed.Server { return startMariaDB(tb) })
	const peer = "GET_LOCK"
	many := []compare.Goal{
		faster(peer, 0.5), tableFaster(peer, 0.4), tableFaster("commits", 0)}
	return distinct("mariadb", "one MariaDB that syncs to disk at each commit; pools of 32 connections; ", server, mariadbSides,
		map[int][]compare.Goal{
			1:  {faster(peer, 0), tableFaster(peer, 0), allocs("", 40), allocs(peer, 0)},
			16: many, 256: many,
		})
}

func startMariaDB(tb testing.TB) *testbed.Server {
	return testbed.MariaDB(tb, "--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1")
}

func mariadbSides(tb testing.TB, server *testbed.Server, c contest) []compare.Side {
	return []compare.Side{
		c.side("interlock", func() acquire {
			config, err := client.ParseDSN(server.URL())
			ok(tb, err)
			d, err := mysql.Open(tb.Context(), config, &mysql.Options{TTL: ttl})
			ok(tb, err)
			return fenced(tb, d)
		}, nil),
		c.side("interlock table", func() acquire {
			d, err := mysql.OpenTable(tb.Context(), mariadbPool(tb, server, connections), &mysql.Options{TTL: ttl, Namespace: "rows"})
			ok(tb, err)
			return fenced(tb, d)
		}, nil),
		c.side("GET_LOCK", func() acquire { return getLock(mariadbPool(tb, server, connections)) }, nil),
		commits(c.clients, mariadbCommit(tb, mariadbPool(tb, server, connections))),
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
func getLock(db *sql.DB) acquire {
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
func mariadbCommit(tb testing.TB, db *sql.DB) func(ctx context.Context) error {
	_, err := db.ExecContext(tb.Context(), `create table if not exists one (id bigint primary key, text varchar(200)) engine = InnoDB`)
	ok(tb, err)
	return func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, `insert into one values (?, ?)`, fresh.Add(1), filler)
		return err
	}
}
