package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver/redis"
)

// system is the server of a race.
type system string

const (
	onPostgres system = "postgres"
	onMariaDB  system = "mariadb"
	onRedis    system = "redis"
)

// systems are connections to one system; the others are nil.
type systems struct {
	postgres *pgxpool.Pool
	mariadb  *sql.DB
	redis    rueidis.Client
}

// connect connects to a system by its URL; that of MariaDB has the form of
// go-sql-driver. close closes the connections.
func connect(ctx context.Context, kind system, url string) (s systems, close func(), err error) {
	switch kind {
	case onPostgres:
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			return s, nil, err
		}
		config.MaxConns = 16 // each actor holds one, also while it is blocked
		if s.postgres, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return s, nil, err
		}
		return s, s.postgres.Close, s.postgres.Ping(ctx)
	case onMariaDB:
		if s.mariadb, err = sql.Open("mysql", url); err != nil {
			return s, nil, err
		}
		return s, func() { s.mariadb.Close() }, s.mariadb.PingContext(ctx)
	case onRedis:
		if s.redis, err = redis.Dial(url); err != nil {
			return s, nil, err
		}
		return s, s.redis.Close, nil
	}
	return s, nil, fmt.Errorf("there is no system %q", kind)
}

// create runs statements that create tables.
func (s systems) create(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		var err error
		if s.postgres != nil {
			_, err = s.postgres.Exec(ctx, statement)
		} else {
			_, err = s.mariadb.ExecContext(ctx, statement)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// waiting returns how many sessions wait for a lock in the database, as the server
// reports. Redis has no waiting.
func (s systems) waiting(ctx context.Context) (n int, err error) {
	switch {
	case s.postgres != nil:
		err = s.postgres.QueryRow(ctx, `select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n)
	case s.mariadb != nil:
		var name string
		err = s.mariadb.QueryRowContext(ctx, `show global status like 'Innodb_row_lock_current_waits'`).Scan(&name, &n)
	}
	return n, err
}

// mariaTx runs fn in a transaction of MariaDB, and commits it if fn returns nil.
func (s systems) mariaTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.mariadb.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
