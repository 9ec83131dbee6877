package countermeasure

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// session is one operation on something in the caller's transaction. Statements are
// written with ? for parameters, and with names of tables and columns in braces.
type session struct {
	driver.SQL
	op, about string
	words     []string // each with its braces, and what it stands for
}

// open makes ready for an operation. names are pairs: the word in braces, and the
// trusted name that is quoted for it.
func open(op, about string, db driver.SQL, names ...string) (session, error) {
	s := session{SQL: db, op: op, about: about}
	if db == nil {
		return s, s.bug("there is no transaction")
	}
	for i := 1; i < len(names); i += 2 {
		quoted, err := sqltext.Identifier(db.Dialect(), names[i], "")
		if err != nil {
			return s, err
		}
		s.words = append(s.words, "{"+names[i-1]+"}", quoted)
	}
	return s, nil
}

// parts are the names of the tables for "interlock schema --only", by the first word of
// their statements; others have columns of the user's.
var parts = map[string]string{"{flags}": "semanticlock", "{decisions}": "byvalue"}

func (s session) maria() bool { return s.Dialect() == driver.MariaDB }

// ago is the time so many microseconds before, a parameter, by the database's clock.
func (s session) ago() string {
	if s.maria() {
		return `utc_timestamp(6) - interval ? microsecond`
	}
	return `clock_timestamp() - ?::bigint * interval '1 microsecond'`
}

// text is a statement in the database's own words. Names are put in last: one may
// have a question mark.
func (s session) text(query string) string {
	if !s.maria() {
		parts := strings.Split(query, "?")
		for i := range parts[1:] {
			parts[i] += "$" + strconv.Itoa(i+1)
		}
		query = strings.Join(parts, "")
	}
	return strings.NewReplacer(s.words...).Replace(query)
}

// exec runs a statement.
func (s session) exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	affected, err = s.Exec(ctx, s.text(query), args...)
	return affected, s.failed(err)
}

// each calls fn for every row.
func (s session) each(ctx context.Context, query string, args []any, fn func(scan func(...any) error) error) error {
	return s.failed(s.Query(ctx, s.text(query), args, fn))
}

// row scans the only row that there may be.
func (s session) row(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = s.each(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

// create makes what is not there; kind tells apart what is made. CREATE … IF NOT
// EXISTS fails on PostgreSQL if another session creates it just then.
func (s session) create(ctx context.Context, kind string, postgres, mariadb []string) error {
	statements := mariadb
	if !s.maria() {
		statements = append([]string{`select pg_advisory_xact_lock(hashtextextended('interlock countermeasure: ` + kind + `', 0))`}, postgres...)
	}
	for _, query := range statements {
		if _, err := s.exec(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

// failed tells a database's error as one of this operation, with the usual reason
// spelled out.
func (s session) failed(err error) error {
	return failure.Table(s.op, s.about, parts[s.words[0]], err)
}

func (s session) bug(format string, args ...any) error {
	return failure.Bug(s.op, s.about, format, args...)
}

// outdated refuses a transaction of MariaDB that reads from before.
func (s session) outdated() error {
	return &interlock.Error{Op: s.op, Driver: "mysql", Name: s.about, Kind: interlock.Retryable,
		Err: errors.New("the transaction had read before, and reads from before the last change")}
}

// maxText is the longest text for people, in bytes.
const maxText = 4 << 10

// readable refuses a text for people that no database takes; it may be empty.
func readable(op, about, what, text string) error {
	if err := driver.CheckText(what, text, 0, maxText); err != nil {
		return failure.Bug(op, about, "%w", err)
	}
	return nil
}
