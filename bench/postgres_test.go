package bench

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// startPostgres starts a server that syncs to disk, with enough connections for a pool per side.
func startPostgres(tb testing.TB, extra ...string) *testbed.Server {
	return testbed.Postgres(tb, append([]string{"-c", "fsync=on", "-c", "max_connections=900", "-c", "max_prepared_transactions=300"}, extra...)...)
}

// connections is the size of a connection pool.
const connections = 32

func postgresCases(tb testing.TB) []benchmark {
	const advisory, commits = "pg_advisory_lock", "commits"
	many := []compare.Goal{faster(advisory, 0.6), faster(commits, 1), tableFaster(commits, 0)}
	return distinct("postgres", "one Postgres that syncs to disk, synchronous_commit on; pools of 32 connections; ", lazily(tb, startPostgres), postgresSides,
		map[int][]compare.Goal{
			1:  {faster(advisory, 0), tableFaster(commits, 0), allocs("", 30), allocs(advisory, 0)},
			16: many, 256: many,
		})
}

// tableFaster is the goal faster for the table instead of sessions.
func tableFaster(than string, times float64) compare.Goal {
	return compare.Goal{Metric: compare.Rate, Side: "interlock table", Against: []string{than}, Want: times}
}

func postgresSides(tb testing.TB, server *testbed.Server, l compare.Locks) []compare.Side {
	return []compare.Side{
		l.Side("interlock", fenced(tb, func() (driver.Fenced, error) {
			config, err := pgxpool.ParseConfig(server.URL())
			ok(tb, err)
			return postgres.Open(tb.Context(), config.ConnConfig, &postgres.Options{TTL: ttl})
		})),
		l.Side("interlock table", fenced(tb, func() (driver.Fenced, error) {
			return postgres.OpenTable(tb.Context(), poolOf(tb, server, connections), &postgres.TableOptions{TTL: ttl, Namespace: "rows"})
		})),
		l.Side("pg_advisory_lock", func() compare.Acquire { return advisoryLock(poolOf(tb, server, connections)) }),
		commits(l.Clients, postgresCommit(tb, poolOf(tb, server, connections))),
	}
}

func poolOf(tb testing.TB, server *testbed.Server, connections int32) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(server.URL())
	ok(tb, err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	ok(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// advisoryLock returns a lock of a connection of the pool, which is kept until the release.
func advisoryLock(pool *pgxpool.Pool) compare.Acquire {
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return 0, nil, err
		}
		if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtextextended($1, 0))`, name); err != nil {
			conn.Release()
			return 0, nil, err
		}
		return 0, compare.Release(func(ctx context.Context) error {
			defer conn.Release()
			_, err := conn.Exec(ctx, `select pg_advisory_unlock(hashtextextended($1, 0))`, name)
			return err
		}), nil
	}
}

// filler is about as long as a record.
const filler = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"

// commit makes the minimum of a durable operation.
type commit = func(ctx context.Context) error

// postgresCommit inserts a row and commits it.
func postgresCommit(tb testing.TB, pool *pgxpool.Pool) commit {
	_, err := pool.Exec(tb.Context(), `create table if not exists one (id bigint primary key, text varchar(200))`)
	ok(tb, err)
	return func(ctx context.Context) error {
		_, err := pool.Exec(ctx, `insert into one values ($1, $2)`, fresh.Add(1), filler)
		return err
	}
}

// commits measures a commit, with the given number of clients.
func commits(clients int, commit commit) compare.Side {
	return compare.Clients("commits", clients, func(ctx context.Context, _ int) error { return commit(ctx) }, nil)
}
