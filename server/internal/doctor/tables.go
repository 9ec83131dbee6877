package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// A catalog is a database for [driver.CheckTables], which only queries.
type catalog struct {
	dialect driver.Dialect
	query   func(ctx context.Context, query string) (rows, error)
}

// rows is the common part of pgx.Rows and sql.Rows, which close at their end.
type rows interface {
	Next() bool
	Scan(...any) error
	Err() error
}

// Dialect implements [driver.SQL].
func (c catalog) Dialect() driver.Dialect { return c.dialect }

// Exec implements [driver.SQL]. The examination only reads.
func (c catalog) Exec(context.Context, string, ...any) (int64, error) {
	return 0, errors.ErrUnsupported
}

// Query implements [driver.SQL].
func (c catalog) Query(ctx context.Context, query string, _ []any, each func(scan func(...any) error) error) error {
	found, err := c.query(ctx, query)
	if err != nil {
		return err
	}
	for found.Next() {
		err = errors.Join(err, each(found.Scan))
	}
	return errors.Join(err, found.Err())
}

// A statement is a Creator of one table.
type statement string

// Create implements [driver.Creator].
func (s statement) Create(ctx context.Context, db driver.SQL) error {
	_, err := db.Exec(ctx, string(s))
	return err
}

// tables reports wrong tables, and those with other columns than those of this version. It ignores missing
// tables: their packages create them, or name the command that does.
func (r *Report) tables(ctx context.Context, id, namespace string, c catalog, wrong ...string) error {
	severity := Warning
	if len(wrong) > 0 {
		severity = Critical
	}
	for _, p := range append([]backend.Part{backend.LockPart(namespace)}, backend.Parts...) {
		statements, err := driver.Statements(c.dialect, p)
		if err != nil {
			return err
		}
		for _, s := range statements {
			err := driver.CheckTables(ctx, c, p.Name, statement(s))
			var bad *driver.TableError
			if err == nil {
				continue
			}
			if !errors.As(err, &bad) {
				return err
			}
			table := fmt.Sprintf("%s (%s)", strings.Trim(bad.Table, "\"`"), p.Name)
			switch {
			case len(bad.Missing) > 0:
				severity = Critical
				wrong = append(wrong, table+" has no column "+strings.Join(bad.Missing, " and "))
			case len(bad.Unknown) > 0:
				wrong = append(wrong, table+" has an unknown column "+strings.Join(bad.Unknown, " and "))
			}
		}
	}
	r.addIf(len(wrong) > 0, id, severity, "tables of another version: %s", joinOrNone(wrong))
	return nil
}
