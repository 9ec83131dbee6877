package driver

import (
	"context"
	"fmt"
	"strings"
)

// Statements returns the statements that [Creator.Create] sends to a database of a dialect. It
// sends nothing.
func Statements(d Dialect, c Creator) ([]string, error) {
	r := &recorder{dialect: d}
	err := c.Create(context.Background(), r)
	return r.statements, err
}

// recorder is a transaction that records statements and executes nothing.
type recorder struct {
	dialect    Dialect
	statements []string
}

func (r *recorder) Exec(_ context.Context, query string, args ...any) (int64, error) {
	r.statements = append(r.statements, strings.TrimSuffix(strings.TrimSpace(withValues(query, args)), ";"))
	return 1, nil
}

// Query returns one row of ones, as if a value that was written is read back. For queries of
// the catalog it returns no rows.
func (r *recorder) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	if !strings.HasPrefix(strings.TrimSpace(query), "select") || strings.Contains(query, "advisory") {
		if _, err := r.Exec(ctx, query, args...); err != nil {
			return err
		}
	}
	if strings.Contains(query, "information_schema") {
		return nil // the statements are those for a table of any version
	}
	return each(func(dest ...any) error {
		for _, d := range dest {
			switch d := d.(type) {
			case *int:
				*d = 1
			case *int64:
				*d = 1
			}
		}
		return nil
	})
}

func (r *recorder) Dialect() Dialect { return r.dialect }

// withValues replaces parameters by numbers, the only parameters of statements that create
// tables.
func withValues(query string, args []any) string {
	for i, arg := range args {
		value := fmt.Sprint(arg)
		if numbered := fmt.Sprintf("$%d", i+1); strings.Contains(query, numbered) {
			query = strings.ReplaceAll(query, numbered, value)
		} else {
			query = strings.Replace(query, "?", value, 1)
		}
	}
	return query
}
