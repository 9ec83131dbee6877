package countermeasure

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// row is one row of a table of the user's, with a column of numbers.
type row struct {
	sqltable.Tables
	table, key string
	this       string // a condition for it
	args       []any  // of the condition
}

func findRow(op string, db driver.SQL, table, keyColumn, column, key string) (row, error) {
	if err := driver.CheckName(op, "a key", key, driver.MaxName); err != nil {
		return row{}, err
	}
	s, err := sqltable.OpenUsers(op, key, db, "table", table, "key", keyColumn, "column", column)
	if err != nil {
		return row{}, err
	}
	this, args := s.Exactly("key", key)
	return row{Tables: s, table: table, key: key, this: this, args: args}, nil
}

// add changes the number if it lies between low and high.
func (r row) add(ctx context.Context, delta, low, high int64) (done bool, err error) {
	return r.change(ctx, `{column} = {column} + ? where {column} between ? and ?`, delta, low, high)
}

// raise adds one to the number if it is what was seen, NULL being 0.
func (r row) raise(ctx context.Context, seen int64) (done bool, err error) {
	return r.change(ctx, `{column} = ? where coalesce({column}, 0) = ?`, seen+1, seen)
}

// change makes an assignment, if its condition is met. It assigns what is not there yet.
func (r row) change(ctx context.Context, assignment string, args ...any) (done bool, err error) {
	n, err := r.Exec(ctx, `update {table} set `+assignment+` and `+r.this, append(args, r.args...)...)
	if err == nil && n > 1 {
		err = r.ambiguous(n)
	}
	return n == 1, err
}

// there reports whether there is such a row, as it was committed last.
func (r row) there(ctx context.Context) (is bool, err error) {
	var one int
	return r.Row(ctx, `select 1 from {table} where `+r.this+` for update`, r.args, &one)
}

// lock reads the number as it was committed last, and locks it.
func (r row) lock(ctx context.Context) (value int64, err error) {
	rows := int64(0)
	err = r.Each(ctx, `select {column} from {table} where `+r.this+` for update`, r.args, func(scan func(...any) error) error {
		rows++
		return scan(&value)
	})
	switch {
	case err != nil:
		return 0, err
	case rows == 0:
		return 0, &NoRowError{Table: r.table, Key: r.key}
	case rows > 1:
		return 0, r.ambiguous(rows)
	}
	return value, nil
}

func (r row) ambiguous(n int64) error {
	return r.Bug("%d rows of table %s have that key", n, r.table)
}

// maxText is the longest text for people, in bytes.
const maxText = 4 << 10

// readable refuses a text for people that no database takes; it may be empty.
func readable(op, about, what, text string) error {
	if err := driver.CheckText(what, text, 0, maxText); err != nil {
		return failure.Bug(op, about, "%w", err)
	}
	return nil
}
