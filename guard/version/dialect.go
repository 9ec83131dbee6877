package version

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// dialect is how a database keeps stamps. Its methods return the errors of the
// database as they are.
type dialect interface {
	// create is the statements that make a table of stamps; index is the quoted
	// name of what finds tombstones by age.
	create(table, index string) []string
	// apply raises the stamp in a table, and locks it if it was raised.
	apply(ctx context.Context, db driver.SQL, table string, c Change) (Outcome, error)
	// show reads the stamp in a table.
	show(ctx context.Context, db driver.SQL, table, entity string) (State, error)
	// purge removes tombstones, at most limit, and returns how many.
	purge(ctx context.Context, db driver.SQL, table string, age time.Duration, limit int) (int64, error)
	// applyColumn is apply in the row that is protected. rows is how many rows were
	// found; if it is not 1 the outcome means nothing.
	applyColumn(ctx context.Context, db driver.SQL, q columns, c Change) (rows int, o Outcome, err error)
	// placeholder is the n-th parameter, and thisRow a condition that holds for the
	// row whose key is the n-th parameter, with the arguments that it takes.
	placeholder(n int) string
	thisRow(key string, n int, value string) (condition string, args []any)
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// speak finds how to talk to db, of which op on name is wanted.
func speak(op string, db driver.SQL, name string) (dialect, error) {
	if d, ok := dialects[db.Dialect()]; ok {
		return d, nil
	}
	return nil, bug(op, name, fmt.Errorf("SQL of %q is not spoken", string(db.Dialect())))
}

// row runs a query that gives one row at most, and scans it.
func row(ctx context.Context, db driver.SQL, query string, args []any, dest ...any) (found bool, err error) {
	err = db.Query(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}
