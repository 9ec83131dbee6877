package tcc

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
	"github.com/interlock-dev/interlock/txn/branch"
)

// ledger is the tables in one transaction. Statements that both databases understand
// are written once, with ? for parameters. {items} and {holds} are the tables, {now} is
// the database's clock in milliseconds since 1970. In an upsert, {into TABLE} is where
// it goes, {or KEY} begins what is done if there is a row, {old COLUMN} is that row's
// and {new COLUMN} what would have been inserted.
//
// MariaDB does assignments one after the other, so that what depends on a column stands
// before it. Texts are never empty, because there is a sql_mode that makes those NULL.
type ledger struct {
	driver.SQL
	items, holds, index string
	maria               bool
}

// open opens the tables in a transaction.
func (t Table) open(op string, db driver.SQL) (*ledger, error) {
	if db == nil {
		return nil, failure.Bug(op, "", "there is no transaction")
	}
	d := db.Dialect()
	if d != driver.Postgres && d != driver.MariaDB {
		return nil, failure.Bug(op, "", "SQL of %q is not spoken", string(d))
	}
	l := &ledger{SQL: db, maria: d == driver.MariaDB}
	name := t.Name
	if name == "" {
		name = "interlock_tcc"
	}
	for _, q := range []struct {
		to           *string
		name, suffix string
	}{{&l.items, name, ""}, {&l.holds, name, "_hold"}, {&l.index, name[strings.LastIndexByte(name, '.')+1:], "_hold_ask"}} {
		var err error
		if *q.to, err = sqltext.Identifier(d, q.name, q.suffix); err != nil {
			return nil, err
		}
	}
	return l, nil
}

var word = regexp.MustCompile(`\{[a-z_, ]+\}`)

// text is a statement in the database's own words.
func (l *ledger) text(query string) string {
	query = word.ReplaceAllStringFunc(query, func(w string) string {
		verb, what, _ := strings.Cut(w[1:len(w)-1], " ")
		switch {
		case verb == "items":
			return l.items
		case verb == "holds":
			return l.holds
		case verb == "now" && l.maria:
			return `(timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) div 1000)`
		case verb == "now":
			return `(extract(epoch from clock_timestamp()) * 1000)::bigint`
		case verb == "into" && l.maria:
			return `into ` + l.text("{"+what+"}")
		case verb == "into":
			return `into ` + l.text("{"+what+"}") + ` as present`
		case verb == "or" && l.maria:
			return `on duplicate key update`
		case verb == "or":
			return `on conflict (` + what + `) do update set`
		case verb == "old" && l.maria:
			return what
		case verb == "old":
			return `present.` + what
		case l.maria:
			return `values(` + what + `)`
		}
		return `excluded.` + what
	})
	if l.maria {
		return query
	}
	parts := strings.Split(query, "?")
	for i := range parts[1:] {
		parts[i] += "$" + strconv.Itoa(i+1)
	}
	return strings.Join(parts, "")
}

func (l *ledger) exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	return l.Exec(ctx, l.text(query), args...)
}

// row scans the only row that there may be.
func (l *ledger) row(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = l.Query(ctx, l.text(query), args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

// called is the call that ctx is made for, as one of a hold.
func called(ctx context.Context, op string) (branch.Call, error) {
	c := branch.From(ctx)
	switch {
	case c.Transaction == "" && c.Branch == "":
		return c, failure.Bug(op, "", "the context is not that of a call: see branch.With")
	case c.Step != "":
		return c, failure.Bug(op, c.Transaction, "branch %q has a step %q, and a hold is that of a whole branch", c.Branch, c.Step)
	}
	if err := driver.CheckName(op, "a transaction", c.Transaction, driver.MaxTransaction); err != nil {
		return c, err
	}
	return c, driver.CheckName(op, "a branch", c.Branch, maxBranch)
}

// maxBranch is the most bytes of a branch's or a resource's name.
const maxBranch = 255

// about tells a database's error as one of op on name.
func about(op, name string, err error) error {
	return failure.Table(op, name, "tcc", err)
}
