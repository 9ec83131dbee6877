package driver

import "github.com/interlock-dev/interlock"

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
