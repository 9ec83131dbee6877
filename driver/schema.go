package driver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
)

// Creator is one or more tables that can create themselves.
type Creator interface {
	// Create creates the tables that do not exist. Several processes may call it at once.
	Create(ctx context.Context, db SQL) error
}

// Create creates the tables that do not exist, in one transaction of its own. Several processes
// may call it at once. A user who may not create tables needs those that exist to be of this
// version. After an Uncertain error it may be repeated.
func Create[T any](ctx context.Context, db Beginner[T], tables ...Creator) error {
	err := inOwn(ctx, db, func(tx SQL) error {
		for _, t := range tables {
			if err := t.Create(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || !slices.Contains([]string{"42501", "42000"}, state.SQLState()) { // PostgreSQL, MariaDB
		return err
	}
	// A database refuses CREATE … IF NOT EXISTS without the right to create, whatever exists.
	if inOwn(ctx, db, func(tx SQL) error { return CheckTables(ctx, tx, "", tables...) }) == nil {
		return nil
	}
	return err
}

// inOwn runs fn in a transaction, and commits it if fn returns nil. It is READ COMMITTED if db can
// choose a level: a snapshot would not have the rows of a process that creates the same tables.
func inOwn[T any](ctx context.Context, db Beginner[T], fn func(tx SQL) error) error {
	begin := db.Begin
	if at, ok := db.(BeginnerAt[T]); ok {
		begin = func(ctx context.Context) (Tx[T], error) { return at.BeginAt(ctx, ReadCommitted) }
	}
	tx, err := begin(ctx)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // the first error says more
		return err
	}
	return tx.Commit(ctx)
}

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

// A TableError reports a table that this version of Interlock cannot use. It is Definite.
type TableError struct {
	Dialect Dialect
	Part    string   // the component that owns the table, as in "interlock schema --only"
	Table   string   // the name in the database
	Missing []string // columns that this version needs and the table lacks
	Unknown []string // columns unknown to this version
}

// Error returns a message with the problem and the command that corrects it.
func (e *TableError) Error() string {
	what := "does not exist, or may not be read"
	switch {
	case len(e.Missing) > 0:
		what = "is not of this version of Interlock: it has no column " + strings.Join(e.Missing, ", ")
	case len(e.Unknown) > 0:
		what = "is of a newer version of Interlock, or was changed: its column " + strings.Join(e.Unknown, ", ") + " is not known"
	}
	database := "postgres"
	if e.Dialect == MariaDB {
		database = "mysql"
	}
	return fmt.Sprintf("table %s %s; apply what \"interlock schema %s --only %s\" prints, of the version that is to use it", e.Table, what, database, e.Part)
}

// ErrorKind returns [interlock.Definite].
func (e *TableError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// CheckTables compares the columns of tables with those that their Create declares, in one
// query. If a table is missing, older or newer, the error is a [*TableError]. Part is the
// component that owns the tables, as in "interlock schema --only".
func CheckTables(ctx context.Context, db SQL, part string, tables ...Creator) error {
	want, order := map[string][]string{}, []string{}
	for _, t := range tables {
		statements, err := Statements(db.Dialect(), t)
		if err != nil {
			return err
		}
		for _, s := range statements {
			if name, columns := declared(s); name != "" {
				want[name], order = columns, append(order, name)
			}
		}
	}
	have, err := columnsOf(ctx, db, order)
	if err != nil {
		return err
	}
	for _, name := range order {
		missing := without(want[name], have[name])
		unknown := without(have[name], want[name])
		if len(have[name]) == 0 {
			missing = nil
		}
		if len(have[name]) == 0 || len(missing)+len(unknown) > 0 {
			return &TableError{Dialect: db.Dialect(), Part: part, Table: name, Missing: missing, Unknown: unknown}
		}
	}
	return nil
}

func without(all, known []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(known, s) })
}

var (
	tableHead  = regexp.MustCompile(`(?is)^create (?:unlogged )?table if not exists ((?:"[^"]*"|\x60[^\x60]*\x60|\.|\w)+)\s*\(`)
	constraint = regexp.MustCompile(`(?i)^((primary key|foreign key|check|unique|exclude|key|index) *\(|(unique|key|index) (\x60.*\x60|\S+) \(|constraint )`)
	quotedText = regexp.MustCompile(`'[^']*'`)
)

// declared parses the name and the columns of a table from a create statement. For any other
// statement the name is empty.
func declared(statement string) (name string, columns []string) {
	at := tableHead.FindStringSubmatchIndex(statement)
	if at == nil {
		return "", nil
	}
	name = statement[at[2]:at[3]]
	body := quotedText.ReplaceAllString(statement[at[1]:], "''")
	depth, begin := 1, 0
	for i := 0; i < len(body) && depth > 0; i++ {
		switch body[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 || depth == 1 && body[i] == ',' {
			part := strings.TrimSpace(body[begin:i])
			if !constraint.MatchString(part) {
				column, _, _ := strings.Cut(part, " ")
				columns = append(columns, strings.Trim(column, "\"`"))
			}
			begin = i + 1
		}
	}
	return name, columns
}

// columnsOf reads the columns of tables from the catalog, by table name.
func columnsOf(ctx context.Context, db SQL, tables []string) (map[string][]string, error) {
	var parts []string
	for _, name := range tables {
		as := literal(db.Dialect(), name)
		if db.Dialect() == MariaDB {
			in, table := "database()", strings.TrimPrefix(name, "`")
			if schema, rest, qualified := strings.Cut(table, "`.`"); qualified {
				in, table = literal(MariaDB, schema), rest
			}
			table = strings.ReplaceAll(strings.TrimSuffix(table, "`"), "``", "`")
			parts = append(parts, `select `+as+` as tab, coalesce(group_concat(column_name), ',') as cols from information_schema.columns where table_schema = `+in+` and table_name = `+literal(MariaDB, table))
			continue
		}
		parts = append(parts, `select `+as+`::text as tab, coalesce(string_agg(attname::text, ','), ',') as cols from pg_attribute where attrelid = to_regclass(`+as+`) and attnum > 0 and not attisdropped`)
	}
	have := map[string][]string{}
	if len(parts) == 0 {
		return have, nil
	}
	err := db.Query(ctx, strings.Join(parts, ` union all `), nil, func(scan func(...any) error) error {
		var table, columns string
		err := scan(&table, &columns)
		have[table] = strings.FieldsFunc(columns, func(r rune) bool { return r == ',' })
		return err
	})
	return have, err
}

// literal quotes a table name. On MariaDB the sql_mode decides whether a backslash in a text is one.
func literal(d Dialect, s string) string {
	if d == MariaDB {
		return fmt.Sprintf(`convert(x'%x' using utf8mb4)`, s)
	}
	return `'` + strings.ReplaceAll(s, `'`, `''`) + `'`
}

// Types that database drivers implement. Users refer to them by package interlock.
type (
	// SQL is [interlock.SQL].
	SQL = interlock.SQL
	// Dialect is [interlock.Dialect].
	Dialect = interlock.Dialect
	// Isolation is [interlock.Isolation].
	Isolation = interlock.Isolation
	// Tx is [interlock.Tx].
	Tx[T any] = interlock.Tx[T]
	// Beginner is [interlock.Beginner].
	Beginner[T any] = interlock.Beginner[T]
	// BeginnerAt is [interlock.BeginnerAt].
	BeginnerAt[T any] = interlock.BeginnerAt[T]
)

// The dialects and the isolation levels.
const (
	Postgres         = interlock.Postgres
	MariaDB          = interlock.MariaDB
	SessionIsolation = interlock.SessionIsolation
	ReadUncommitted  = interlock.ReadUncommitted
	ReadCommitted    = interlock.ReadCommitted
	RepeatableRead   = interlock.RepeatableRead
	Serializable     = interlock.Serializable
)

// An Autocommitter runs single statements in one request each. Pools of Postgres implement it.
type Autocommitter interface {
	// Autocommit returns an SQL in which each statement is a transaction of this level. If a
	// query fails, discard the rows that it passed to its function. The error of a statement is
	// Uncertain if the statement may have been committed. The SQL is safe for concurrent use.
	Autocommit(level Isolation) SQL
}

// An Atomic runs a transaction of several statements in one request. Pools of MariaDB implement it.
type Atomic interface {
	// Atomically runs statements of a compound statement, with literals in place of parameters. It
	// commits if they set the variable v_done to 1; value is then v_value, a bigint or nil. Otherwise,
	// and if one of them fails, nothing is done and done is false. It is false, too, if the session's
	// syntax is another one. After an Uncertain error the transaction may be committed. The
	// statements must not wait for long: the server does not end them when ctx ends.
	Atomically(ctx context.Context, level Isolation, statements string) (done bool, value *int64, err error)
}
