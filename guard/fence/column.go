package fence

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Column stores the mark in a BIGINT column of the row that it protects, and needs no other
// table. NULL means that no token has entered.
//
// It protects that one row, and nothing else:
//
//   - not a row that is not inserted yet: there is no mark to raise, Enter returns a
//     [NoRowError], and a stale holder may insert too
//   - not other rows that belong to the same claim: a newer holder that entered one of them
//     does not reject a stale holder in the others. Enter each of them before the first read
//   - not a row that was deleted and inserted again: its mark starts again
//
// Use [Table] if any of that matters.
type Column struct {
	// Table is the table, or schema.table. Key is its unique column by which Enter finds a row.
	// Enter compares its resource with it, as text that the database converts to the column's
	// type. On MariaDB the resource must equal the text to which the database converts the key.
	// Column is the column of the mark. All three are trusted: never take them from a request.
	Table, Key, Column string
	// Strict rejects an equal token too: each token enters once.
	Strict bool
}

var _ Marks = Column{}

// A NoRowError means that a [Column] has no row for a resource, so there is nothing to protect.
// It is Definite.
type NoRowError struct {
	Table    string
	Resource string
}

// Error names the table and the resource.
func (e *NoRowError) Error() string {
	return fmt.Sprintf("enter %q: table %s has no such row, and a column guards only rows that exist", e.Resource, e.Table)
}

// ErrorKind returns [interlock.Definite].
func (e *NoRowError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// protected is the rows of a Column in one transaction.
type protected struct {
	sqltable.Tables
	Column
}

// found is the read mark of a column.
type found struct {
	rows      int
	seen      interlock.Token
	plausible bool
	raised    bool // or as high before
}

// look reads the marks of a resource, and whether the token is plausible.
func (p protected) look(ctx context.Context, e entry, locking string) (f found, err error) {
	this, key := p.Exactly("key", e.resource)
	err = p.Each(ctx, `select coalesce({mark}, 0), ?{pg ::bigint} <= `+tokenLimit+` from {rows} where `+this+locking,
		append([]any{int64(e.token)}, key...), func(scan func(...any) error) error {
			f.rows++
			return scan((*int64)(&f.seen), &f.plausible)
		})
	return f, err
}

// Enter raises the mark in the row whose key is resource, as [Marks] describes. It does not
// store source. If the row does not exist, it returns a [NoRowError]; other errors are those of
// [Table.Enter].
func (c Column) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	if err := validateToken(resource, token); err != nil {
		return err
	}
	if err := validateResource("enter", resource); err != nil {
		return err
	}
	tables, err := sqltable.OpenUsers("enter", resource, db, "rows", c.Table, "key", c.Key, "mark", c.Column)
	if err != nil {
		return err
	}
	p := protected{tables, c}
	enter := p.enterPostgres
	if p.Maria() {
		enter = p.enterMaria
	}
	f, err := enter(ctx, entry{resource: resource, token: token})
	switch {
	case err != nil:
		return err
	case f.rows == 0:
		return &NoRowError{Table: p.Quoted("rows"), Resource: resource}
	case f.rows > 1:
		return p.Bug("column %s of table %s is not unique: %d rows matched", p.Quoted("key"), p.Quoted("rows"), f.rows)
	case !f.plausible:
		return implausible("enter", resource, token)
	case f.raised:
		return nil
	case f.seen < token, f.seen == token && !c.Strict:
		return &interlock.Error{Op: "enter", Name: resource, Kind: interlock.Retryable,
			Err: fmt.Errorf("the row changed meanwhile: its mark is %d now", f.seen)}
	}
	return stale(resource, f.seen, token)
}
