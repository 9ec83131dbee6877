// Package sqltable runs statements on tables of Interlock, in the SQL of PostgreSQL or MariaDB. It
// builds no statements: each is written where it is used, as a template; see [Tables.Text]. It begins
// no transactions and retries nothing.
//
//	var layout = sqltable.Layout{Part: "box", Default: "interlock_box", Tables: map[string]string{"boxes": ""}}
//
//	t, err := layout.Open("put box", id, db, name)
//	_, err = t.Exec(ctx, `update {boxes} set content = {?}, put_at = {now} where id = ?`, content, id)
package sqltable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Layout defines the tables of one feature.
type Layout struct {
	Part    string            // the name in "interlock schema --only"
	Default string            // the default name of the tables
	Tables  map[string]string // suffixes of the name, by their word in statements
	Indexes map[string]string // the same for indexes, whose names have no schema

	opened sync.Map // *names by where
}

// where is a table name in a dialect.
type where struct {
	dialect driver.Dialect
	name    string
}

// Open returns the tables of a name, or schema.name, for one operation in the transaction db. op and
// about are for errors; about defaults to the name. An invalid name, an unknown dialect and a nil db
// are Bugs.
func (l *Layout) Open(op, about string, db driver.SQL, name string) (t Tables, err error) {
	name = cmp.Or(name, l.Default)
	t = Tables{db: db, op: op, about: cmp.Or(about, name), part: l.Part, defined: map[string]string{}}
	if db == nil {
		return t, t.Bug("there is no transaction")
	}
	key := where{db.Dialect(), name}
	known, ok := l.opened.Load(key)
	if !ok {
		n := names{words: map[string]string{}, texts: map[string]string{}}
		if err := cmp.Or(n.quote(key, l.Tables), n.quote(where{key.dialect, Unqualified(name)}, l.Indexes)); err != nil {
			return t, err
		}
		known, _ = l.opened.LoadOrStore(key, &n)
	}
	t.names = known.(*names)
	return t, nil
}

// Unqualified returns the name of a table without its schema.
func Unqualified(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// OpenUsers returns the user's tables and columns, as [Layout.Open] does. Each pair is a word and its
// name.
func OpenUsers(op, about string, db driver.SQL, pairs ...string) (Tables, error) {
	t := Tables{db: db, op: op, about: about, names: &names{words: map[string]string{}}, defined: map[string]string{}}
	if db == nil {
		return t, t.Bug("there is no transaction")
	}
	for i := 1; i < len(pairs); i += 2 {
		quoted, err := Identifier(db.Dialect(), pairs[i], "")
		if err != nil {
			return t, err
		}
		t.names.words[pairs[i-1]] = quoted
	}
	return t, nil
}

// Tables are tables in one transaction, for one operation. Errors of the database contain the
// operation and its object, and keep their kind. If a table is missing or of another version, errors
// name the command that creates it.
type Tables struct {
	db              driver.SQL
	op, about, part string
	names           *names
	defined         map[string]string // texts of words, in these tables only
}

// SQL returns the transaction.
func (t Tables) SQL() driver.SQL { return t.db }

// Maria reports whether the database is MariaDB; otherwise it is PostgreSQL.
func (t Tables) Maria() bool { return t.db.Dialect() == driver.MariaDB }

// Quoted returns the quoted name of a word.
func (t Tables) Quoted(word string) string { return t.names.words[word] }

// Define sets the text of a word; the text is not a template. It disables the cache of these tables.
func (t Tables) Define(word, text string) { t.defined[word] = text }

// Exactly returns the condition, and its parameters, that the column of a word has exactly this
// value. MariaDB compares numbers with any text, and texts without case; this condition excludes such
// rows. Its first comparison can use an index.
func (t Tables) Exactly(word, value string) (condition string, args []any) {
	if t.Maria() {
		return `{` + word + `} = ? and convert({` + word + `} using utf8mb4) collate utf8mb4_nopad_bin = ?`, []any{value, value}
	}
	return `{` + word + `} = ?`, []any{value}
}

// Exec runs a statement and returns the number of affected rows.
func (t Tables) Exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	affected, err = t.db.Exec(ctx, t.Text(query), args...)
	return affected, t.Failed(err)
}

// Each calls fn for every row of a query.
func (t Tables) Each(ctx context.Context, query string, args []any, fn func(scan func(...any) error) error) error {
	return t.Failed(t.db.Query(ctx, t.Text(query), args, fn))
}

// Row scans the last row of a query. It reports whether there was one.
func (t Tables) Row(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = t.Each(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

// List scans every row of a query into the fields of an R.
func List[R any](ctx context.Context, t Tables, query string, args []any, fields func(*R) []any) (all []R, err error) {
	err = t.Each(ctx, query, args, func(scan func(...any) error) error {
		var r R
		err := scan(fields(&r)...)
		all = append(all, r)
		return err
	})
	return all, err
}

// Column returns the values of a query's only column.
func Column[V any](ctx context.Context, t Tables, query string, args ...any) ([]V, error) {
	return List(ctx, t, query, args, func(v *V) []any { return []any{v} })
}

// Create runs the statements that create the tables, and skips those that are empty for this
// database. On PostgreSQL it takes a lock, because CREATE … IF NOT EXISTS fails if another session
// creates the same table. It is one lock for all tables: transactions may create several, in any order.
func (t Tables) Create(ctx context.Context, statements ...string) error {
	const lock = `{pg select pg_advisory_xact_lock(hashtextextended('interlock: create', 0))}`
	for _, query := range append([]string{lock}, statements...) {
		text := t.Text(query)
		exists, err := t.indexed(ctx, query)
		if err == nil && text != "" && !exists {
			_, err = t.db.Exec(ctx, text)
		}
		if err != nil {
			return t.Failed(err)
		}
	}
	return nil
}

var createIndex = regexp.MustCompile(`create (?:unique )?index if not exists \{(\w+)\} on \{(\w+)\}`)

// indexed reports whether a statement creates an index that exists, on PostgreSQL. There CREATE INDEX IF NOT
// EXISTS waits for all transactions that have written to the table, and later writers wait for it.
func (t Tables) indexed(ctx context.Context, statement string) (exists bool, err error) {
	m := createIndex.FindStringSubmatch(statement)
	if m == nil || t.Maria() || t.Quoted(m[1]) == "" || t.Quoted(m[2]) == "" {
		return false, nil
	}
	missing := 0
	_, err = t.Row(ctx, `select 1 - count(*) from pg_index i join pg_class c on c.oid = i.indexrelid
		where i.indrelid = to_regclass(?::text) and '"' || replace(c.relname, '"', '""') || '"' = ?::text`, []any{t.Quoted(m[2]), t.Quoted(m[1])}, &missing)
	return missing == 0, err
}

// A Deletion selects rows to delete, and their order.
type Deletion struct {
	Table string // its word
	Key   string // the columns of its primary key
	Where string // a template
	Args  []any  // of Where
	Order string // columns; empty is any order
	Limit int    // the most rows
}

// deletedAtOnce is the number of rows that one statement deletes on MariaDB.
const deletedAtOnce = 200

// Delete deletes rows and returns their number. Rows that no longer meet the condition stay. On
// PostgreSQL it is one statement that skips locked rows; the array is computed once, while a plan may
// run a subquery, with its limit, for each row. On MariaDB it reads without locks and deletes by key,
// because a delete by age would lock the gaps for new rows.
func (t Tables) Delete(ctx context.Context, d Deletion) (deleted int64, err error) {
	order := ``
	if d.Order != "" {
		order = ` order by ` + d.Order
	}
	if !t.Maria() {
		return t.Exec(ctx, `delete from {`+d.Table+`} where ctid = any(array(
	select ctid from {`+d.Table+`} where `+d.Where+order+` limit ?::bigint for update skip locked))`, append(slices.Clone(d.Args), int64(d.Limit))...)
	}
	key := strings.Split(d.Key, ", ")
	old, err := List(ctx, t, `select `+d.Key+` from {`+d.Table+`} where `+d.Where+order+` limit ?`, append(slices.Clone(d.Args), d.Limit),
		func(row *[]any) (dest []any) {
			*row = make([]any, len(key))
			for i := range *row {
				dest = append(dest, &(*row)[i])
			}
			return dest
		})
	for some := range slices.Chunk(old, deletedAtOnce) {
		if err != nil {
			break
		}
		var rows []string
		for _, row := range some {
			rows = append(rows, isRow(key, row))
		}
		var n int64
		n, err = t.Exec(ctx, `delete r from {`+d.Table+`} as r force index (primary) where (`+
			strings.Join(rows, ` or `)+`) and `+d.Where, append(slices.Concat(some...), d.Args...)...)
		deleted += n
	}
	return deleted, err
}

// isRow returns the condition for the row of a key on MariaDB; values may be empty texts.
func isRow(key []string, values []any) string {
	equal := make([]string, len(key))
	for i, column := range key {
		equal[i] = column + ` = ?`
		if text, ok := values[i].([]byte); ok && len(text) == 0 {
			equal[i] = column + ` = {?}`
		}
	}
	return `(` + strings.Join(equal, ` and `) + `)`
}

// Failed wraps a database's error with the operation. It returns any other error unchanged.
func (t Tables) Failed(err error) error { return failure.Table(t.op, t.about, t.part, err) }

// Refused returns a Definite error that Interlock detects, in the form of the database's errors.
func (t Tables) Refused(err error) error { return t.problem(interlock.Definite, err) }

// Outdated returns the Retryable error of a MariaDB transaction whose snapshot is older than the last
// change of the rows that it locked.
func (t Tables) Outdated() error { return t.problem(interlock.Retryable, errOutdated) }

var errOutdated = errors.New("the transaction's snapshot is older than the last change")

func (t Tables) problem(kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: t.op, Driver: map[bool]string{true: "mariadb", false: "postgres"}[t.Maria()], Name: t.about, Kind: kind, Err: err}
}

// Bug returns the error of a broken rule: nothing was done.
func (t Tables) Bug(format string, args ...any) error {
	return failure.Bug(t.op, t.about, format, args...)
}

// identifiers has the quote and the length limit of names. A database would cut or
// refuse longer ones, and two tables might become one.
var identifiers = map[driver.Dialect]struct {
	quote string
	max   int // bytes in PostgreSQL, characters in MariaDB: bytes are the stricter
}{
	driver.Postgres: {`"`, 63},
	driver.MariaDB:  {"`", 64},
}

// Identifier returns "name" or "schema.name" as a quoted identifier, with suffix
// added to the name. Case is significant. An invalid name is an error of kind Bug.
func Identifier(d driver.Dialect, name, suffix string) (string, error) {
	rule, ok := identifiers[d]
	if !ok {
		return "", misnamed(name, fmt.Sprintf("cannot be quoted: unsupported SQL dialect %q", string(d)))
	}
	parts := strings.Split(name, ".")
	parts[len(parts)-1] += suffix
	if len(parts) > 2 {
		return "", misnamed(name, "has more than one dot")
	}
	for i, p := range parts {
		switch {
		case p == "" || p == suffix:
			return "", misnamed(name, "is empty")
		case len(p) > rule.max:
			return "", misnamed(name, fmt.Sprintf("is longer than %d bytes", rule.max-len(suffix)))
		case strings.ContainsRune(p, 0):
			return "", misnamed(name, "contains NUL")
		}
		parts[i] = rule.quote + strings.ReplaceAll(p, rule.quote, rule.quote+rule.quote) + rule.quote
	}
	return strings.Join(parts, "."), nil
}

func misnamed(name, why string) error {
	return &interlock.Error{Op: "name table or column", Name: name, Kind: interlock.Bug,
		Err: fmt.Errorf("%w: it %s", interlock.ErrName, why)}
}
