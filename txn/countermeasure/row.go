package countermeasure

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// row is one row of a user's table, with a column of numbers.
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

// add changes the number if it is between low and high.
func (r row) add(ctx context.Context, delta, low, high int64) (done bool, err error) {
	return r.change(ctx, `{column} = {column} + ? where {column} between ? and ?`, delta, low, high)
}

// raise adds one to the number if it equals seen; NULL is 0.
func (r row) raise(ctx context.Context, seen int64) (done bool, err error) {
	return r.change(ctx, `{column} = ? where coalesce({column}, 0) = ?`, seen+1, seen)
}

// change executes an assignment if its condition is met. It always assigns a new value.
func (r row) change(ctx context.Context, assignment string, args ...any) (done bool, err error) {
	n, err := r.Exec(ctx, `update {table} set `+assignment+` and `+r.this, append(args, r.args...)...)
	if err == nil && n > 1 {
		err = r.ambiguous(n)
	}
	return n == 1, err
}

// exists reports whether the row exists, as last committed.
func (r row) exists(ctx context.Context) (is bool, err error) {
	var one int
	return r.Row(ctx, `select 1 from {table} where `+r.this+` for update`, r.args, &one)
}

// lock locks the number, and returns it as last committed.
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

// maxText bounds a text for operators, in bytes.
const maxText = 4 << 10

// checkText rejects a text for operators that a database cannot store; it may be empty.
func checkText(op, about, what, text string) error {
	if err := driver.CheckText(what, text, 0, maxText); err != nil {
		return failure.Bug(op, about, "%w", err)
	}
	return nil
}
