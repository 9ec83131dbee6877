package fence

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Table keeps marks in a table of their own, one row a resource. It protects
// everything that is done in the transaction that entered: any rows of any
// tables, those that are yet to be inserted included, as long as all who touch
// them enter the same resource.
//
// The zero value is ready once [Table.Create] made the tables. It is safe for
// concurrent use, with a transaction for each.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_fence". It is
	// at most 56 bytes, and is trusted: never take it from a request.
	Name string
	// Strict refuses an equal token too: each token enters once.
	Strict bool
}

var _ Marks = Table{}

var layout = sqltable.Layout{Part: "fence", Default: "interlock_fence", Tables: map[string]string{"marks": "", "audit": "_rebase"}}

// marks is the tables in one transaction.
type marks struct{ sqltable.Tables }

// open checks that db and resource can be worked with.
func (t Table) open(op, resource string, db driver.SQL) (marks, error) {
	if err := named(op, resource); err != nil {
		return marks{}, err
	}
	m, err := layout.Open(op, resource, db, t.Name)
	return marks{m}, err
}

// entry is a wish to enter.
type entry struct {
	resource string
	token    interlock.Token
	source   string
}

// tokenLimit is the highest plausible token at the database's own clock, in SQL: nothing
// above it is stored, since a mark that no later token can reach would lock
// everybody out.
var tokenLimit = fmt.Sprintf("((({micros now} - %d + %d) << %d) | %d)",
	int64(interlock.EpochUnixMicro), interlock.MaxAhead.Microseconds(), bits.Len(interlock.MaxSub), interlock.MaxSub)

// unread is a transaction in which nothing was read yet.
type unread struct{ driver.SQL }

// nothingRead reports whether it is certain that db has read nothing.
func nothingRead(db driver.SQL) bool {
	_, ok := db.(unread)
	return ok
}

// Create makes the table of marks, and a second one, named with "_rebase" at
// the end, that records rebases, unless they exist. Several processes may do it
// at once. It takes effect when the transaction commits, on MariaDB at once: there
// it commits what was done in the transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	m, err := layout.Open("create table", "", db, t.Name)
	if err != nil {
		return err
	}
	return m.Create(ctx,
		`create table if not exists {marks} (
			resource {string 512} not null primary key,
			token bigint not null,
			previous bigint not null,
			{maria entries bigint not null,
			}source {text} not null,
			raised_at {time} not null){engine}`,
		`create table if not exists {audit} (
			id bigint {pg generated always as identity}{maria not null auto_increment} primary key,
			resource {string 512} not null,
			from_token bigint not null,
			to_token bigint not null,
			reason {text} not null,
			rebased_by {text} not null,
			rebased_at {time} not null){engine}`)
}

// Enter raises the mark of resource, 1 to 512 bytes of UTF-8, as [Marks] says.
// A token that lies more than [interlock.MaxAhead] beyond the database's clock
// is an [interlock.ErrImplausibleToken] and changes nothing. Any other error is
// that of the database, with its kind.
func (t Table) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	if err := issued(resource, token); err != nil {
		return err
	}
	m, err := t.open("enter", resource, db)
	if err != nil {
		return err
	}
	enter := m.enterPostgres
	if m.Maria() {
		enter = m.enterMaria
	}
	seen, plausible, err := enter(ctx, entry{resource: resource, token: token, source: label(source)})
	switch {
	case err != nil:
		return err
	case !plausible:
		return implausible("enter", resource, token)
	case seen > token, t.Strict && seen == token:
		return stale(resource, seen, token)
	}
	return nil
}

// Show tells the mark of resource as the transaction sees it, without locking
// it. A resource that nothing entered has Token 0.
func (t Table) Show(ctx context.Context, db driver.SQL, resource string) (driver.Mark, error) {
	m, err := t.open("show mark", resource, db)
	if err != nil {
		return driver.Mark{}, err
	}
	if m.Maria() {
		return m.showMaria(ctx, resource)
	}
	return m.readPostgres(ctx, resource, ``)
}

// Resources lists resources that have a mark, at most limit: from the first that is not
// before from, in the order of the database. It costs as much as it returns.
func (t Table) Resources(ctx context.Context, db driver.SQL, from string, limit int) (list []string, err error) {
	m, err := layout.Open("list marks", from, db, t.Name)
	if err != nil {
		return nil, err
	}
	return sqltable.Column[string](ctx, m, `select resource from {marks} where resource >= ? order by resource limit ?`, from, int64(limit))
}
