package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// connections is the size of a connection pool.
const connections = 32

func postgresCases(tb testing.TB) []benchmark {
	server := sync.OnceValue(func() *testbed.Server { return testbed.Postgres(tb, "-c", "fsync=on") })
	const advisory, commits = "pg_advisory_lock", "commits"
	many := []compare.Goal{
		faster(advisory, 0.6), faster(commits, 1), tableFaster(commits, 0)}
	return distinct("postgres", "one Postgres that syncs to disk, synchronous_commit on; pools of 32 connections; ", server, postgresSides,
		map[int][]compare.Goal{
			1: {faster(advisory, 0), tableFaster(commits, 0),
				allocs("", 30), allocs(advisory, 0)},
			16: many, 256: many,
		})
}

// tableFaster is the goal faster for the table instead of sessions.
func tableFaster(than string, times float64) compare.Goal {
	return compare.Goal{Metric: compare.Rate, Side: "interlock table", Against: []string{than}, Want: times}
}

func postgresSides(tb testing.TB, server *testbed.Server, c contest) []compare.Side {
	return []compare.Side{
		c.side("interlock", func() acquire {
			config, err := pgxpool.ParseConfig(server.URL())
			ok(tb, err)
			d, err := postgres.Open(tb.Context(), config.ConnConfig, &postgres.Options{TTL: ttl})
			ok(tb, err)
			return fenced(tb, d)
		}, nil),
		c.side("interlock table", func() acquire {
			d, err := postgres.OpenTable(tb.Context(), poolOf(tb, server, connections), &postgres.TableOptions{TTL: ttl, Namespace: "rows"})
			ok(tb, err)
			return fenced(tb, d)
		}, nil),
		c.side("pg_advisory_lock", func() acquire { return advisoryLock(poolOf(tb, server, connections)) }, nil),
		commits(c.clients, postgresCommit(tb, poolOf(tb, server, connections))),
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
func advisoryLock(pool *pgxpool.Pool) acquire {
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

// postgresCommit inserts a row and commits it.
func postgresCommit(tb testing.TB, pool *pgxpool.Pool) func(ctx context.Context) error {
	_, err := pool.Exec(tb.Context(), `create table if not exists one (id bigint primary key, text varchar(200))`)
	ok(tb, err)
	return func(ctx context.Context) error {
		_, err := pool.Exec(ctx, `insert into one values ($1, $2)`, fresh.Add(1), filler)
		return err
	}
}

// commits measures the minimum of a durable operation, with the given number of clients.
func commits(clients int, commit func(ctx context.Context) error) compare.Side {
	return compare.Side{Name: "commits", Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		return compare.Drive(ctx, clients, window, func(ctx context.Context, _ int) (time.Duration, error) {
			began := time.Now()
			err := commit(ctx)
			return time.Since(began), err
		})
	}}
}
