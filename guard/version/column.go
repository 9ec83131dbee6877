package version

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Column keeps the stamp in the row that it protects, and needs no other table.
// NULL, or version 0, means that no change was applied yet.
//
// It protects that one row, and nothing else:
//
//   - not a row that is yet to be inserted: Apply returns a [NoRowError]. Insert
//     it then, with its stamp, in the same transaction: the one of two that is
//     slower fails by the unique key, and may apply again;
//   - not a row that was deleted: a late change finds no row and inserts it
//     again. Mark rows as deleted instead;
//   - not other rows of the same entity.
//
// Use [Table] where any of that matters.
type Column struct {
	// Table is the table, or schema.table. Key is its column by which a row is
	// found, unique; Change.Entity is compared with it, as text that the database
	// reads as the column's type (on MariaDB it must also be the text as which the
	// database writes the key). All names are trusted: never take them from a
	// request.
	Table, Key string
	// Version is a column of 64-bit integers.
	Version string
	// Tie is a column of text, wide enough and of a character set for the names of
	// producers; or empty if there is none: then a stamp with a tie is a Bug.
	Tie string
	// Terminal is a boolean column, or empty if there is none: then a terminal
	// change is a Bug.
	Terminal string
}

var _ Guard = Column{}

// A NoRowError tells that there is no row of that key. It is Definite.
type NoRowError struct {
	Table string // as it is quoted
	Key   string
}

// Error names the table and the key.
func (e *NoRowError) Error() string { return fmt.Sprintf("table %s has no row %q", e.Table, e.Key) }

// ErrorKind is [interlock.Definite].
func (e *NoRowError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

func noRow(op, table, key string) error {
	return problem(op, key, interlock.Definite, &NoRowError{table, key})
}

// errMoved: a row is not what it was a moment ago, for reasons that are not known.
var errMoved = &interlock.Error{Op: "apply change", Kind: interlock.Retryable, Err: errors.New("the row changed meanwhile")}

// protected is a Column's rows in one transaction.
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

// Apply judges a change and raises the stamp in the row whose key is c.Entity, as
// [Guard] says: by one statement on PostgreSQL, where a second one finds out the
// outcome if another transaction was faster, and by one or two on MariaDB. It
// writes no other column: that is for the caller to do. A row that does not
// exist is a [NoRowError]; any other error is that of the database, with its kind.
func (c Column) Apply(ctx context.Context, db driver.SQL, change Change) (Outcome, error) {
	const op = "apply change"
	if err := change.check(op); err != nil {
		return Stale, err
	}
	switch {
	case c.Tie == "" && change.Stamp.Tie != "":
		return Stale, bug(op, change.Entity, errors.New("the stamp has a tie, and the table no column for it"))
	case c.Terminal == "" && change.Terminal:
		return Stale, bug(op, change.Entity, errors.New("the change is terminal, and the table has no column for that"))
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
