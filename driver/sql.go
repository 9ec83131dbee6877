package driver

import "github.com/interlock-dev/interlock"

// What drivers of databases implement, and users name without importing this package.
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

// An Autocommitter runs single statements in one request each. Pools of Postgres do.
type Autocommitter interface {
	// Autocommit returns SQL of which each statement is a transaction of this level. What a
	// query passes to its function counts only if the query succeeds. The error of a
	// statement is Uncertain if it may have been committed. It is safe for concurrent use.
	Autocommit(level Isolation) SQL
}
