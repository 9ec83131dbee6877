package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// store is a table in one transaction.
//
// Statements are written once for both databases where they differ in little:
// {messages}, {lanes}, {dead}, {audit}, {layout} are the tables, {now} is the time
// of the statement by the database's clock, in microseconds since 1970, as all
// times are stored; {due} says that a lane, called l, waits no more; ? is a parameter. {or_leave COLUMN} ends an insert that leaves
// a row that is there, {or_set COLUMN: A B} one that overwrites A and B of it. A
// text that may be empty is written coalesce(?, {empty}).
type store struct {
	driver.SQL
	dialect dialect
	names   names
	table   Table
	pause   time.Duration // the longest of a relay
}

// dialect is what a database has of its own.
type dialect interface {
	words
	batches
	byKeys
	layouts
}

// words are parts of statements.
type words interface {
	// now is the time in SQL.
	now() string
	// empty is the empty text.
	empty() string
	// onConflict ends an insert whose row is there by its unique column: columns of
	// it are overwritten, or if there are none it is left.
	onConflict(unique string, columns []string) string
}

// batches are the statements of many messages.
type batches interface {
	// create is the statements that make the tables.
	create(n names) []string
	// insert adds messages; see add.
	insert(ctx context.Context, s store, a add) error
	// ready selects the columns of a row, of messages that are not parked and not
	// busy, in order.
	ready(slice, limit int, busy []int64) (query string, args []any)
	// remove deletes messages, by a statement that is the same for any number.
	remove(ids []int64) (query string, args []any)
}

// byKeys does something with the rows of a table, called m, that have one of some
// primary keys, and touches no other row. A condition may be added to the first two.
type byKeys interface {
	deleteBy(table, key string, ids []int64) string
	updateBy(table, key string, ids []int64, set string) string
	lockBy(table, key string, ids []int64) string
}

// layouts keep the number of slices from being changed, and change it.
type layouts interface {
	// shared ends a select of rows that nobody may change until the transaction ends.
	shared() string
	// exclusive ends a select of rows that this transaction changes. No lock is waited for
	// longer than wait; before are the statements that see to that.
	exclusive(wait time.Duration) (before []string, end string)
	// rule is the statements that wait for all transactions that have added messages, and
	// make those fail that add some by another number later; none if shared does that.
	rule(n names, slices int) []string
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// text is query as the database reads it.
func (s store) text(query string) string {
	n := s.names
	query = strings.ReplaceAll(query, `{due}`, s.over())
	var b strings.Builder
	for query != "" {
		before, rest, open := strings.Cut(query, "{")
		b.WriteString(before)
		if !open {
			break
		}
		var word string
		word, query, _ = strings.Cut(rest, "}")
		word, columns, _ := strings.Cut(word, ": ")
		word, unique, _ := strings.Cut(word, " ")
		switch word {
		case "or_leave", "or_set":
			b.WriteString(s.dialect.onConflict(unique, strings.Fields(columns)))
		default:
			b.WriteString(map[string]string{"messages": n.messages, "lanes": n.lanes, "dead": n.dead, "audit": n.audit,
				"layout": n.layout, "now": s.dialect.now(), "empty": s.dialect.empty()}[word])
		}
	}
	if s.Dialect() == driver.MariaDB {
		return b.String()
	}
	return numbered(b.String())
}

// over is {due}. A clock that was ahead when a time was stored, and was set back since,
// makes nobody wait for longer than a pause.
func (s store) over() string {
	return `(l.wait_until <= {now} or l.why = '` + whyQueued + `' or l.why in ('` + WhyRetry + `', '` + WhyBlocked + `')
		and l.wait_until > {now} + ` + strconv.FormatInt(s.pause.Microseconds(), 10) + `)`
}

// numbered writes parameters as PostgreSQL has them.
func numbered(query string) string {
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}

func (s store) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.Exec(ctx, s.text(query), args...)
	return err
}

func (s store) query(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	return s.Query(ctx, s.text(query), args, each)
}

// list is numbers as SQL writes them between parentheses, at least one of them.
func list(ids []int64) string {
	var b []byte
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(b)
}

// failed tells an error of the database as one of op on the outbox.
func (s store) failed(op string, err error) error {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && state.SQLState() == checkViolation {
		return &interlock.Error{Op: op, Name: s.table.name(), Kind: interlock.Retryable,
			Err: fmt.Errorf("the number of slices was changed while the transaction ran, repeat the transaction: %w", err)}
	}
	return failure.Table(op, s.table.name(), "outbox", err)
}
