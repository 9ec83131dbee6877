package version

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Column stores the stamp in the row that it protects, and needs no other table. NULL, or
// version 0, means that no change was applied yet.
//
// It protects that one row, and nothing else:
//
//   - not a row that is not inserted yet: Apply returns a [NoRowError]. Insert the row then,
//     with its stamp, in the same transaction. If two transactions insert, the slower one fails
//     by the unique key, and may apply again
//   - not a row that was deleted: a late change finds no row and inserts it again. Mark rows as
//     deleted instead
//   - not other rows of the same entity
//
// Use [Table] if any of that matters.
type Column struct {
	// Table is the table, or schema.table. Key is its unique column by which Apply finds a row.
	// Apply compares Change.Entity with it, as text that the database converts to the column's
	// type. On MariaDB the entity must equal the text to which the database converts the key.
	// All names are trusted: never take them from a request.
	Table, Key string
	// Version is a column of 64-bit integers.
	Version string
	// Tie is a text column whose width and character set fit the names of producers. Empty
	// means none: then a stamp with a tie is a Bug.
	Tie string
	// Terminal is a boolean column. Empty means none: then a terminal change is a Bug.
	Terminal string
}

var _ Guard = Column{}

// A NoRowError means that there is no row of that key. It is Definite.
type NoRowError struct {
	Table string // as it is quoted
	Key   string
}

// Error names the table and the key.
func (e *NoRowError) Error() string { return fmt.Sprintf("table %s has no row %q", e.Table, e.Key) }

// ErrorKind returns [interlock.Definite].
func (e *NoRowError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

func noRow(op, table, key string) error {
	return problem(op, key, interlock.Definite, &NoRowError{table, key})
}

// errMoved means that a row changed between two statements, for an unknown reason.
var errMoved = &interlock.Error{Op: "apply change", Kind: interlock.Retryable, Err: errors.New("the row changed meanwhile")}

// protected is the rows of a Column in one transaction.
type protected struct {
	sqltable.Tables
	Column
}

func (c Column) open(op, about string, db driver.SQL) (protected, error) {
	words := []string{"rows", c.Table, "key", c.Key, "version", c.Version}
	if c.Tie != "" {
		words = append(words, "tie", c.Tie)
	}
	if c.Terminal != "" {
		words = append(words, "terminal", c.Terminal)
	}
	t, err := sqltable.OpenUsers(op, about, db, words...)
	return protected{t, c}, err
}

// Apply compares a change with the stamp in the row whose key is c.Entity, and raises the
// stamp, as [Guard] describes. It takes one statement on PostgreSQL, or two if another
// transaction was faster, and one or two on MariaDB. It writes no other column; the caller
// does. If the row does not exist, it returns a [NoRowError]; any other error is that of the
// database, with its kind.
func (c Column) Apply(ctx context.Context, db driver.SQL, change Change) (Outcome, error) {
	const op = "apply change"
	if err := change.check(op); err != nil {
		return Stale, err
	}
	switch {
	case c.Tie == "" && change.Stamp.Tie != "":
		return Stale, bug(op, change.Entity, errors.New("the stamp has a tie, but the column Tie is not set"))
	case c.Terminal == "" && change.Terminal:
		return Stale, bug(op, change.Entity, errors.New("the change is terminal, but the column Terminal is not set"))
	}
	r, err := c.open(op, change.Entity, db)
	if err != nil {
		return Stale, err
	}
	apply := r.applyPostgres
	if r.Maria() {
		apply = r.applyMaria
	}
	rows, o, err := apply(ctx, change)
	switch {
	case err != nil:
		return Stale, err
	case rows == 0:
		return Stale, noRow(op, r.Quoted("rows"), change.Entity)
	case rows > 1:
		return Stale, r.Bug("column %s of table %s is not unique: %d rows matched", r.Quoted("key"), r.Quoted("rows"), rows)
	}
	return o, nil
}
