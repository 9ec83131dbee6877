package fence

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// dialect is how a database keeps marks. Its methods return the errors of the
// database as they are.
type dialect interface {
	// create is the statements that make the table of marks and the one of rebases.
	create(marks, audit string) []string
	// enter raises the mark of e in a table and locks it; seen is the mark before.
	// plausible is false if the token is not, and then nothing was done.
	enter(ctx context.Context, db driver.SQL, table string, e entry) (seen interlock.Token, plausible bool, err error)
	// enterColumn does the same in a column of the row that it protects.
	enterColumn(ctx context.Context, db driver.SQL, q columns, e entry) (found, error)
	// shared ends a query that locks what it reads against writers alone.
	shared() string
	// show reads a mark.
	show(ctx context.Context, db driver.SQL, table, resource string) (driver.Mark, error)
	// rebase sets the mark to r's token, and records that, unless it is not plausible.
	rebase(ctx context.Context, db driver.SQL, marks, audit string, r rebase) (old driver.Mark, plausible bool, err error)
}

// entry is a wish to enter.
type entry struct {
	resource string
	token    interlock.Token
	source   string
	strict   bool
}

// found is what was found in the place of a column's mark.
type found struct {
	rows      int
	seen      interlock.Token
	plausible bool
	raised    bool // or as high before
}

// rebase is a wish to set a mark.
type rebase struct {
	resource   string
	to         interlock.Token
	reason, by string
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// speak finds how to talk to db, of which op on resource is wanted.
func speak(op string, db driver.SQL, resource string) (dialect, error) {
	if d, ok := dialects[db.Dialect()]; ok {
		return d, nil
	}
	return nil, failure.Bug(op, resource, "SQL of %q is not spoken", string(db.Dialect()))
}

// unread is a transaction in which nothing was read yet.
type unread struct{ driver.SQL }

// nothingRead reports whether it is certain that db has read nothing.
func nothingRead(db driver.SQL) bool {
	_, ok := db.(unread)
	return ok
}

// row runs a query that gives one row at most, and scans it.
func row(ctx context.Context, db driver.SQL, query string, args []any, dest ...any) (found bool, err error) {
	err = db.Query(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}
