package interlock

import (
	"context"
	"time"
)

// Dialect names the SQL of a database.
type Dialect string

const (
	// Postgres is PostgreSQL: parameters are $1, $2, …
	Postgres Dialect = "postgres"
	// MariaDB is MariaDB, and MySQL where they agree: parameters are ?.
	MariaDB Dialect = "mariadb"
)

// SQL runs statements inside one transaction of the user's. Package driver/postgres or
// driver/mysql makes it of the user's own transaction value, such as postgres.Tx of a pgx.Tx.
//
// Errors are classified: a serialization failure, a deadlock and a lock timeout
// are Retryable (the transaction did nothing and may be run again), a lost
// connection is Uncertain, the rest is Definite. A lock that was not to be had
// in time is an [ErrHeld] as well. Nothing is retried.
type SQL interface {
	// Exec runs one statement and returns the number of affected rows.
	Exec(ctx context.Context, query string, args ...any) (affected int64, err error)
	// Query runs one statement and calls each with a scan function for every
	// row, in order, until it returns an error. Rows are closed before Query
	// returns, so each must not run statements on the same transaction.
	Query(ctx context.Context, query string, args []any, each func(scan func(dest ...any) error) error) error
	// Dialect says which SQL is understood.
	Dialect() Dialect
}

// Tx is a transaction that Interlock began and ends. T is the type the user's
// own code works with, such as pgx.Tx or *sql.Tx.
type Tx[T any] interface {
	SQL
	// Native is the user's handle on the same transaction.
	Native() T
	// Classify gives an error that the user's code had from Native the kind
	// that SQL would have given it. An error of no database comes back as it is.
	Classify(err error) error
	// Bound makes the server end the transaction if it hears nothing for idle,
	// and end a statement that runs, or waits, for longer than statement; 0
	// leaves that one alone. It only ever shortens what the session allows, and
	// the session is as before once the transaction has ended. A database that
	// counts in whole seconds rounds idle down, to one at least.
	Bound(ctx context.Context, idle, statement time.Duration) error
	// Commit ends it. An Uncertain error means that it may have committed.
	Commit(ctx context.Context) error
	// Rollback ends it without effect; after a Commit it does nothing.
	Rollback(ctx context.Context) error
}

// Beginner starts transactions on the user's own pool, such as postgres.Pool of a
// *pgxpool.Pool.
type Beginner[T any] interface {
	// Begin starts a transaction with the pool's own settings.
	Begin(ctx context.Context) (Tx[T], error)
}
