package interlock

import (
	"context"
	"database/sql"
)

// Isolation is the isolation level of a transaction, as the SQL standard names it.
// Databases promise different things under one name: see package guard/isolation.
type Isolation int

const (
	// SessionIsolation is the default level of the session.
	SessionIsolation Isolation = iota
	// ReadUncommitted is READ UNCOMMITTED, which PostgreSQL treats as READ COMMITTED.
	ReadUncommitted
	// ReadCommitted is READ COMMITTED.
	ReadCommitted
	// RepeatableRead is REPEATABLE READ.
	RepeatableRead
	// Serializable is SERIALIZABLE.
	Serializable
)

// String returns the level's name in lower case.
func (l Isolation) String() string {
	switch l {
	case ReadUncommitted:
		return "read uncommitted"
	case ReadCommitted:
		return "read committed"
	case RepeatableRead:
		return "repeatable read"
	case Serializable:
		return "serializable"
	}
	return "session"
}

// Standard returns the level of database/sql.
func (l Isolation) Standard() sql.IsolationLevel {
	switch l {
	case ReadUncommitted:
		return sql.LevelReadUncommitted
	case ReadCommitted:
		return sql.LevelReadCommitted
	case RepeatableRead:
		return sql.LevelRepeatableRead
	case Serializable:
		return sql.LevelSerializable
	}
	return sql.LevelDefault
}

// BeginnerAt is a [Beginner] that can choose the level of each transaction. Those
// of Postgres and MariaDB can.
type BeginnerAt[T any] interface {
	Beginner[T]
	// BeginAt starts a transaction at a level. The session keeps its own.
	BeginAt(ctx context.Context, level Isolation) (Tx[T], error)
}
