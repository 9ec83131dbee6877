package fence

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Column keeps the mark in a BIGINT column of the row that it protects, and
// needs no other table. NULL means that nothing has entered.
//
// It protects that one row, and nothing else:
//
//   - not a row that is yet to be inserted: there is no mark to raise, Enter
//     returns a [NoRowError], and a stale holder may insert as well;
//   - not other rows that belong to the same claim: a newer holder that entered
//     one of them does not keep a stale one out of the others. Enter each of
//     them, before the first read;
//   - not a row that was deleted and inserted again: its mark starts anew.
//
// Use [Table] where any of that matters.
type Column struct {
	// Table is the table, or schema.table. Key is its column by which a row is
	// found, unique; Enter's resource is compared with it, as text that the
	// database reads as the column's type. Column holds the mark. All three are
	// trusted: never take them from a request.
	Table, Key, Column string
	// Strict refuses an equal token too: each token enters once.
	Strict bool
}

var _ Marks = Column{}

// A NoRowError tells that a [Column] has no row for a resource, so there is
// nothing that could be protected. It is Definite.
type NoRowError struct {
	Table    string
	Resource string
}

// Error names the table and the resource.
func (e *NoRowError) Error() string {
	return fmt.Sprintf("enter %q: table %s has no such row, and a column guards only rows that exist", e.Resource, e.Table)
}

// ErrorKind is [interlock.Definite].
func (e *NoRowError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// columns are a Column's names, quoted.
type columns struct{ table, key, column string }

func (c Column) quoted() (q columns, err error) {
	if q.table, err = quoted(c.Table, ""); err != nil {
		return q, err
	}
	for _, n := range []struct {
		to   *string
		name string
	}{{&q.key, c.Key}, {&q.column, c.Column}} {
		if n.name == "" {
			return q, misnamed(n.name, "is empty")
		}
		if *n.to, err = quoted(n.name, ""); err != nil {
			return q, err
		}
	}
	return q, nil
}

// Enter raises the mark in the row whose key is resource, as [Marks] says.
// source is not kept. A row that does not exist is a [NoRowError]; the rest is
// as for [Table.Enter].
func (c Column) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	if err := admit(db, resource, token); err != nil {
		return err
	}
	q, err := c.quoted()
	if err != nil {
		return err
	}
	compare := "<="
	if c.Strict {
		compare = "<"
	}
	query := fmt.Sprintf(`update %[1]s set %[2]s = $1::bigint
		where %[3]s = $2 and coalesce(%[2]s, 0) %[4]s $1::bigint and $1::bigint <= %[5]s`,
		q.table, q.column, q.key, compare, tokenLimit)
	n, err := db.Exec(ctx, query, int64(token), resource)
	switch {
	case err != nil:
		return about("enter", resource, err)
	case n == 1:
		return nil
	case n > 1:
		return bug("enter", resource, "column %s of table %s is not unique: %d rows matched", q.key, q.table, n)
	}
	return c.refused(ctx, db, q, resource, token)
}

// refused finds out why no row was raised.
func (c Column) refused(ctx context.Context, db driver.SQL, q columns, resource string, token interlock.Token) error {
	var seen interlock.Token
	found, plausible := false, false
	query := fmt.Sprintf(`select coalesce(%s, 0), $1::bigint <= %s from %s where %s = $2`, q.column, tokenLimit, q.table, q.key)
	err := db.Query(ctx, query, []any{int64(token), resource}, func(scan func(...any) error) error {
		found = true
		return scan((*int64)(&seen), &plausible)
	})
	switch {
	case err != nil:
		return about("enter", resource, err)
	case !found:
		return &NoRowError{Table: q.table, Resource: resource}
	case !plausible:
		return implausible("enter", resource, token)
	case seen < token, seen == token && !c.Strict:
		return &interlock.Error{Op: "enter", Name: resource, Kind: interlock.Retryable,
			Err: fmt.Errorf("the row changed meanwhile: its mark is %d now", seen)}
	}
	return stale(resource, seen, token)
}
