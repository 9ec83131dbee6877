package driver

import (
	"context"

	"github.com/interlock-dev/interlock"
)

// Types that database drivers implement. Users refer to them by package interlock.
type (
	// SQL is [interlock.SQL].
	SQL = interlock.SQL
	// Dialect is [interlock.Dialect].
	Dialect = interlock.Dialect
	// Isolation is [interlock.Isolation].
	Isolation = interlock.Isolation
	// Tx is [interlock.Tx].
	Tx[T any] = interlock.Tx[T]
	// Beginner is [interlock.Beginner].
	Beginner[T any] = interlock.Beginner[T]
	// BeginnerAt is [interlock.BeginnerAt].
	BeginnerAt[T any] = interlock.BeginnerAt[T]
)

// The dialects and the isolation levels.
const (
	Postgres         = interlock.Postgres
	MariaDB          = interlock.MariaDB
	SessionIsolation = interlock.SessionIsolation
	ReadUncommitted  = interlock.ReadUncommitted
	ReadCommitted    = interlock.ReadCommitted
	RepeatableRead   = interlock.RepeatableRead
	Serializable     = interlock.Serializable
)

// An Autocommitter runs single statements in one request each. Pools of Postgres implement it.
type Autocommitter interface {
	// Autocommit returns an SQL in which each statement is a transaction of this level. If a
	// query fails, discard the rows that it passed to its function. The error of a statement is
	// Uncertain if the statement may have been committed. The SQL is safe for concurrent use.
	Autocommit(level Isolation) SQL
}

// An Atomic runs a transaction of several statements in one request. Pools of MariaDB implement it.
type Atomic interface {
	// Atomically runs statements of a compound statement, with literals in place of parameters. It
	// commits if they set the variable v_done to 1; value is then v_value, a bigint or nil. Otherwise,
	// and if one of them fails, nothing is done and done is false. It is false, too, if the session's
	// syntax is another one. After an Uncertain error the transaction may be committed. The
	// statements must not wait for long: the server does not end them when ctx ends.
	Atomically(ctx context.Context, level Isolation, statements string) (done bool, value *int64, err error)
}
