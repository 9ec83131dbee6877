package interlock

import (
	"context"
	"database/sql"
)

// Isolation is how much a transaction sees of others that run beside it, as the
// SQL standard names it. What a database gives under a name differs: see package
// guard/isolation.
type Isolation int

const (
	// SessionIsolation is what the session begins its transactions with.
	SessionIsolation Isolation = iota
	// ReadUncommitted is READ UNCOMMITTED, which PostgreSQL takes for READ COMMITTED.
	ReadUncommitted
	// ReadCommitted is READ COMMITTED.
	ReadCommitted
	// RepeatableRead is REPEATABLE READ.
	RepeatableRead
	// Serializable is SERIALIZABLE.
	Serializable
)

// String is the level's name in lower case.
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

// Standard is the level as database/sql has it.
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

// BeginnerAt is a Beginner that can choose the level of each transaction. Those
// of Postgres and MariaDB do.
type BeginnerAt[T any] interface {
	Beginner[T]
	// BeginAt is Begin at a level, for this transaction only.
	BeginAt(ctx context.Context, level Isolation) (Tx[T], error)
}
