package version

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// Rows says how an R is read from a row of a table with a version column, and
// written back.
//
//	var accounts = version.Rows[Account]{
//		Table: "account", Key: "id", Version: "version",
//		Columns: []string{"owner", "balance"},
//		Fields:  func(a *Account) []any { return []any{&a.Owner, &a.Balance} },
//	}
//
// All other writers of those rows must raise the version too.
type Rows[R any] struct {
	// Table, Key and Version are as those of a [Column]. A version that is NULL
	// counts as 0.
	Table, Key, Version string
	// Columns are those that are read and written, trusted as the names above are.
	Columns []string
	// Fields are pointers to where they stand in an R, in the same order.
	Fields func(*R) []any
}

// Update reads the row of key, lets change work on it, and writes it back with
// the next version, if the version is still the one that was read. Otherwise it
// begins again, as [Tx] does, of which the errors are; further ones are a
// [NoRowError], and the errors of change, as they are. An attempt costs a
// transaction with two statements, and the row is locked from the second one to
// the COMMIT: not while change runs.
//
// change runs once for each attempt, each time on an R that was just read.
func Update[T, R any](ctx context.Context, u *Updater, db driver.Beginner[T], rows Rows[R], key string,
	change func(ctx context.Context, row *R) error) error {
	const op = "update row"
	if err := named(op, key); err != nil {
		return err
	}
	if change == nil {
		return bug(op, key, errNoFunction)
	}
	return u.update(ctx, key, retryable, func() error {
		return attempt(ctx, db, key, func(tx driver.Tx[T]) error {
			s, err := rows.statements(tx, key)
			if err != nil {
				return err
			}
			var r R
			seen, err := rows.read(ctx, tx, s, &r)
			if err != nil {
				return failed(op, key, failure.Uncommitted(err))
			}
			if err := change(ctx, &r); err != nil {
				return err
			}
			return failed(op, key, failure.Uncommitted(rows.write(ctx, tx, s, &r, seen)))
		})
	})
}

// statements are those of one row.
type statements struct {
	read, write string
	key         string
	table       string
	readArgs    []any
	writeArgs   []any // after those of the columns, and before the version
}

func (r Rows[R]) statements(db driver.SQL, key string) (s statements, err error) {
	const op = "update row"
	d, err := speak(op, db, key)
	if err != nil {
		return s, err
	}
	if r.Fields == nil || len(r.Columns) == 0 {
		return s, bug(op, key, errors.New("Rows have no Columns or no Fields"))
	}
	q, err := Column{Table: r.Table, Key: r.Key, Version: r.Version}.quoted(db.Dialect())
	if err != nil {
		return s, err
	}
	names, set := make([]string, len(r.Columns)), make([]string, len(r.Columns))
	for i, c := range r.Columns {
		if names[i], err = sqltext.Identifier(db.Dialect(), c, ""); err != nil {
			return s, err
		}
		set[i] = names[i] + " = " + d.placeholder(i+1)
	}
	s.key, s.table = key, q.table
	found, args := d.thisRow(q.key, 1, key)
	s.read, s.readArgs = fmt.Sprintf(`select coalesce(%s, 0), %s from %s where %s`, q.version, strings.Join(names, ", "), q.table, found), args
	n := len(names)
	found, s.writeArgs = d.thisRow(q.key, n+1, key)
	s.write = fmt.Sprintf(`update %[1]s set %[2]s, %[3]s = coalesce(%[3]s, 0) + 1 where %[4]s and coalesce(%[3]s, 0) = %[5]s`,
		q.table, strings.Join(set, ", "), q.version, found, d.placeholder(n+2))
	return s, nil
}

func (r Rows[R]) read(ctx context.Context, db driver.SQL, s statements, into *R) (seen int64, err error) {
	fields := r.Fields(into)
	if len(fields) != len(r.Columns) {
		return 0, bug("update row", s.key, fmt.Errorf("%d Fields for %d Columns", len(fields), len(r.Columns)))
	}
	rows := 0
	err = db.Query(ctx, s.read, s.readArgs, func(scan func(...any) error) error {
		rows++
		return scan(append([]any{&seen}, fields...)...)
	})
	switch {
	case err != nil:
		return 0, err
	case rows == 0:
		return 0, noRow("update row", s.table, s.key)
	case rows > 1:
		return 0, bug("update row", s.key, fmt.Errorf("%d rows of table %s have that key", rows, s.table))
	}
	return seen, nil
}

func (r Rows[R]) write(ctx context.Context, db driver.SQL, s statements, from *R, seen int64) error {
	args := append(r.Fields(from), s.writeArgs...)
	affected, err := db.Exec(ctx, s.write, append(args, seen)...)
	if err == nil && affected == 0 {
		return ErrConflict
	}
	return err
}
