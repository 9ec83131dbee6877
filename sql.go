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

// SQL runs statements inside one transaction of the user. Packages driver/postgres and
// driver/mysql create it from the user's own transaction value: postgres.Tx of a pgx.Tx.
//
// Errors are classified, and nothing is retried:
//
//   - a serialization failure, a deadlock and a lock timeout are Retryable: the transaction
//     did nothing and may be run again; a lock timeout is an [ErrHeld] as well
//   - a lost connection is Uncertain
//   - all others are Definite
type SQL interface {
	// Exec runs one statement and returns the number of affected rows.
	Exec(ctx context.Context, query string, args ...any) (affected int64, err error)
	// Query runs one statement and calls each with a scan function for every
	// row, in order, until it returns an error. Rows are closed before Query
	// returns, so each must not run statements on the same transaction.
	Query(ctx context.Context, query string, args []any, each func(scan func(dest ...any) error) error) error
	// Dialect returns the dialect of the statements.
	Dialect() Dialect
}

// Tx is a transaction that Interlock began and ends. T is the type the user's
// own code works with, such as pgx.Tx or *sql.Tx.
type Tx[T any] interface {
	SQL
	// Native returns the user's handle of the same transaction.
	Native() T
	// Classify classifies an error that Native returned, as the methods of SQL do. It
	// returns an error that is not from the database unchanged.
	Classify(err error) error
	// Bound makes the server end the transaction if it receives nothing for idle, and end a
	// statement that takes longer than statement. 0 leaves a bound as it is. It only
	// shortens the bounds of the session, and only for this transaction. A database that
	// counts in whole seconds rounds idle down, to at least one.
	Bound(ctx context.Context, idle, statement time.Duration) error
	// Commit commits. After an Uncertain error the transaction may be committed.
	Commit(ctx context.Context) error
	// Rollback rolls back; after a Commit it does nothing.
	Rollback(ctx context.Context) error
}

// Beginner starts transactions on the user's own pool, such as postgres.Pool of a
// *pgxpool.Pool.
type Beginner[T any] interface {
	// Begin starts a transaction with the pool's own settings.
	Begin(ctx context.Context) (Tx[T], error)
}
