package barrier

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// dialect is how a database keeps rows. Statements name tables as {rows} and {marks}.
type dialect interface {
	// create makes the tables.
	create() []string
	// claim is the one statement by which a call comes to its row: it shares the
	// low-water mark, makes the row or moves it as the call's event says, and gives
	// what was there before. It gives nothing if the call lies below the mark, or asks
	// for the row of a branch that has none and gets none.
	claim(c claim, lease time.Duration) (query string, args []any)
	// mark reads the low-water mark that calls are compared with, and its exceptions.
	mark() string
	// schema is an expression of the schema that tables without one are in, and
	// excepted the type of the column of exceptions.
	schema() string
	excepted() string
	// text is a statement as the database writes it, of one whose parameters are ?.
	text(query string) string
	keeper
}

// keeper is how a database forgets.
type keeper interface {
	// raise are the statements that raise the low-water mark to ? with the exceptions
	// ?, one transaction for each; it is as it was unless ? is above it and ? does not
	// lie ahead of the database's clock.
	raise() []string
	// remove deletes rows that lie the spread below the mark in force, so many at most,
	// and none of a transaction that is excepted.
	remove(ctx context.Context, l lender, limit int) (int, error)
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// isRow finds the row of a branch.
const isRow = `transaction_id = ? and branch = ? and step = {empty?}`

// exec runs a statement whose parameters are ?.
func (l lender) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return l.Exec(ctx, l.within(l.text(query)), args...)
}

// cases is the part of a statement that moves a state, as the table of moves says.
func cases(column string, to map[state]state) string {
	var b strings.Builder
	b.WriteString("case " + column)
	for _, from := range sorted(to) {
		fmt.Fprintf(&b, " when '%s' then '%s'", from, to[from])
	}
	return b.String() + " else " + column + " end"
}

// among lists states as SQL does; an empty list is of one that no row has.
func among(to map[state]state) string {
	list := "'" + string(absent) + "'"
	for _, s := range sorted(to) {
		list += ",'" + string(s) + "'"
	}
	return "(" + list + ")"
}

// numbered writes parameters as PostgreSQL does.
func numbered(query string) string {
	var b strings.Builder
	n := 0
	for part := range strings.SplitSeq(query, "?") {
		if n > 0 {
			b.WriteString("$" + strconv.Itoa(n))
		}
		b.WriteString(part)
		n++
	}
	return b.String()
}

// states is the list of all states that a row can have.
func states() string {
	all := map[state]state{}
	for s := range moves {
		all[s] = s
	}
	list := among(all)
	return strings.Replace(list, "'"+string(absent)+"',", "", 1)
}

// filled puts what c asks for into a statement that claims its row.
func (c claim) filled(query, from, lease, there, now string) string {
	to := changes(c.event, c.outside)
	first, known, replace := moves[absent][c.event].after(c.outside), "0", "1 = 0"
	switch first {
	case tried:
		known = "1"
	case absent: // it is not made, but the database looks at what it might make
		first = blocked
	}
	if c.event == refusal {
		replace = "1 = 1"
	}
	return strings.NewReplacer("{first}", string(first), "{known}", known, "{replace}", replace,
		"{moving}", among(to), "{moved}", cases(from, to), "{lease}", strings.ReplaceAll(lease, "{now}", now),
		"{there}", there, "{now}", now).Replace(query)
}
