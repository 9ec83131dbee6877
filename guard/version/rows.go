package version

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Rows describes how to read an R from a row of a table with a version column, and how to write
// it back.
//
//	var accounts = version.Rows[Account]{
//		Table: "account", Key: "id", Version: "version",
//		Columns: []string{"owner", "balance"},
//		Fields:  func(a *Account) []any { return []any{&a.Owner, &a.Balance} },
//	}
//
// All other writers of those rows must raise the version too.
type Rows[R any] struct {
	// Table, Key and Version are as in [Column]. A NULL version counts as 0.
	Table, Key, Version string
	// Columns are the columns to read and write; they are trusted like the names above.
	Columns []string
	// Fields returns pointers to the fields of an R, in the order of Columns.
	Fields func(*R) []any
}

// Update reads the row of key and calls change on it. If the row still has the version that was
// read, Update writes it back with the next version. Otherwise it retries, as [Tx] does. Its
// errors are those of Tx, a [NoRowError], and the errors of change, unchanged. An attempt costs
// a transaction with two statements. The row is locked from the second statement to the COMMIT:
// not while change runs.
//
// change runs once per attempt, each time on an R that was just read.
func Update[T, R any](ctx context.Context, u *Updater, db driver.Beginner[T], rows Rows[R], key string,
	change func(ctx context.Context, row *R) error) error {
	const op = "update row"
	if err := validateEntity(op, key); err != nil {
		return err
	}
	if change == nil {
		return bug(op, key, errNoFunction)
	}
	return u.update(ctx, key, retryable, func() error {
		return attempt(ctx, db, key, func(tx driver.Tx[T]) error {
			s, err := rows.open(tx, key)
			if err != nil {
				return err
			}
			var r R
			seen, err := s.read(ctx, &r)
			if err != nil {
				return failure.Uncommitted(err)
			}
			if err := change(ctx, &r); err != nil {
				return err
			}
			return failure.Uncommitted(s.write(ctx, &r, seen))
		})
	})
}

// oneRow is a row in one transaction.
type oneRow[R any] struct {
	sqltable.Tables
	rows Rows[R]
	key  string
	this string // the condition that selects the row
	args []any  // of this
}

func (r Rows[R]) open(db driver.SQL, key string) (oneRow[R], error) {
	s := oneRow[R]{rows: r, key: key}
	words := []string{"rows", r.Table, "key", r.Key, "version", r.Version}
	for i, c := range r.Columns {
		words = append(words, columnWord(i), c)
	}
	var err error
	if s.Tables, err = sqltable.OpenUsers("update row", key, db, words...); err != nil {
		return s, err
	}
	if r.Fields == nil || len(r.Columns) == 0 {
		return s, s.Bug("Rows have no Columns or no Fields")
	}
	s.this, s.args = s.Exactly("key", key)
	return s, nil
}

// columnWord returns the word for the i-th column.
func columnWord(i int) string { return fmt.Sprintf("column %d", i) }

func (s oneRow[R]) read(ctx context.Context, into *R) (seen int64, err error) {
	fields := s.rows.Fields(into)
	if len(fields) != len(s.rows.Columns) {
		return 0, s.Bug("%d Fields for %d Columns", len(fields), len(s.rows.Columns))
	}
	columns := ``
	for i := range fields {
		columns += `, {` + columnWord(i) + `}`
	}
	rows := 0
	err = s.Each(ctx, `select coalesce({version}, 0)`+columns+` from {rows} where `+s.this, s.args, func(scan func(...any) error) error {
		rows++
		return scan(append([]any{&seen}, fields...)...)
	})
	switch {
	case err != nil:
		return 0, err
	case rows == 0:
		return 0, noRow("update row", s.Quoted("rows"), s.key)
	case rows > 1:
		return 0, s.Bug("%d rows of table %s have that key", rows, s.Quoted("rows"))
	}
	return seen, nil
}

func (s oneRow[R]) write(ctx context.Context, from *R, seen int64) error {
	set := ``
	for i := range s.rows.Columns {
		set += `{` + columnWord(i) + `} = ?, `
	}
	args := append(s.rows.Fields(from), s.args...)
	affected, err := s.Exec(ctx, `update {rows} set `+set+`{version} = coalesce({version}, 0) + 1 where `+s.this+` and coalesce({version}, 0) = ?`,
		append(args, seen)...)
	if err == nil && affected == 0 {
		return ErrConflict
	}
	return err
}
