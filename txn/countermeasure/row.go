package countermeasure

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
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
func (r row) exists(ctx context.Context) (exists bool, err error) {
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

// Reread lets a later step of a saga overwrite a row only if it has not changed since an earlier
// step read it: the reread value. It uses the version column of guard/version across
// transactions. [version.Update], for a read and write in one transaction, raises the same
// column. All writers of the row must raise it.
type Reread struct {
	// Row is the column of the version. Its Tie and Terminal are not used.
	Row version.Column
}

// A ChangedError reports that the row was written since it was read. Nothing was done. It is
// Definite: what was computed from the row is outdated, so the saga must undo, or read again.
type ChangedError struct {
	Table, Key string
	Seen       int64 // the version that was read
}

// Error names the row and the version.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q of table %s has changed since version %d was read", e.Key, e.Table, e.Seen)
}

// ErrorKind returns [interlock.Definite].
func (e *ChangedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Unchanged returns nil if a row still has the version that was seen (NULL counts as 0). It then
// raises the version by one and locks the row until the transaction ends: write it now. Otherwise
// it returns a [ChangedError], for a lower version too, because the row was then recreated. A
// second call for the same version also returns one, so it must be behind the step's barrier. A
// missing row is a [version.NoRowError]. Other errors are the database's. It costs one statement,
// and two if rejected.
func (r Reread) Unchanged(ctx context.Context, db driver.SQL, key string, seen int64) error {
	const op = "reread"
	if seen < 0 || seen == math.MaxInt64 {
		return failure.Bug(op, key, "version %d: 0 or more, and below the maximum, is required", seen)
	}
	row, err := findRow(op, db, r.Row.Table, r.Row.Key, r.Row.Version, key)
	if err != nil {
		return err
	}
	if raised, err := row.raise(ctx, seen); raised || err != nil {
		return err
	}
	exists, err := row.exists(ctx)
	switch {
	case err != nil:
		return err
	case !exists:
		return &version.NoRowError{Table: r.Row.Table, Key: key}
	}
	return &ChangedError{Table: r.Row.Table, Key: key, Seen: seen}
}

// Sweep deletes up to limit resources without a flag for longer than age, by the database's
// clock, and returns their number. It touches no flag. On MariaDB age must be longer than any
// transaction lasts: a transaction that began before the deletion gets no error that its reads
// are outdated.
func (l SemanticLock) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	f, err := l.open("sweep flags", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, f.Bug("an age of %v and a limit of %d", age, limit)
	}
	return f.Delete(ctx, sqltable.Deletion{Table: "flags", Key: "resource", Where: `owner = {empty} and until_at < {start} - {span}`,
		Args: []any{age.Microseconds()}, Order: "until_at", Limit: limit})
}

// Sweep deletes at most limit operations, of any records, whose last log or cancellation is older than
// age by the database's clock. It returns their number. A repeated call of a deleted operation counts as
// the first, and Standing does not return it. So choose age longer than transactions are retried and
// replays are needed.
func (v VersionFile) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	l, err := v.log("sweep version file", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, l.Bug("an age of %v and a limit of %d", age, limit)
	}
	return l.Delete(ctx, sqltable.Deletion{Table: "log", Key: "record, position", Where: `logged_at < {start} - {span}`,
		Args: []any{age.Microseconds()}, Order: "logged_at", Limit: limit})
}
