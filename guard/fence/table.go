package fence

import (
	"context"
	"fmt"
	"math/bits"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Table stores marks in a table of their own, one row a resource. It protects everything in the
// transaction that entered: any rows of any tables, including new rows, if all transactions
// that access them enter the same resource.
//
// The zero value is ready once [Table.Create] has created the tables. It is safe for concurrent
// use, with one transaction each.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_fence". It is
	// at most 56 bytes, and is trusted: never take it from a request.
	Name string
	// Strict rejects an equal token too: each token enters once.
	Strict bool
}

var _ Marks = Table{}

var layout = sqltable.Layout{Part: "fence", Default: "interlock_fence", Tables: map[string]string{"marks": "", "audit": "_rebase"}}

// marks is the tables in one transaction.
type marks struct{ sqltable.Tables }

// open validates db and resource.
func (t Table) open(op, resource string, db driver.SQL) (marks, error) {
	if err := validateResource(op, resource); err != nil {
		return marks{}, err
	}
	m, err := layout.Open(op, resource, db, t.Name)
	return marks{m}, err
}

// entry is a request to enter.
type entry struct {
	resource string
	token    interlock.Token
	source   string
}

// tokenLimit is the highest plausible token by the database's own clock, in SQL. Nothing above
// it is stored, because a mark that no later token can reach would reject every holder.
var tokenLimit = fmt.Sprintf("((({micros now} - %d + %d) << %d) | %d)",
	int64(interlock.EpochUnixMicro), interlock.MaxAhead.Microseconds(), bits.Len(interlock.MaxSub), interlock.MaxSub)

// unread is a transaction in which nothing has been read yet.
type unread struct{ driver.SQL }

// nothingRead reports whether db has certainly read nothing.
func nothingRead(db driver.SQL) bool {
	_, ok := db.(unread)
	return ok
}

// Create creates the table of marks and a second one, with the suffix "_rebase", that records
// rebases, unless they exist. Several processes may call it concurrently. It takes effect when
// the transaction commits. On MariaDB it takes effect at once, and commits what the transaction
// did before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	m, err := layout.Open("create table", "", db, t.Name)
	if err != nil {
		return err
	}
	return m.Create(ctx,
		`create table if not exists {marks} (
			resource {name 512} not null primary key,
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

// Enter raises the mark of resource, 1 to 512 bytes of UTF-8, as [Marks] describes. If a token
// is more than [interlock.MaxAhead] beyond the database's clock, it returns an
// [interlock.ErrImplausibleToken] and changes nothing. Any other error is that of the database,
// with its kind.
func (t Table) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	if err := validateToken(resource, token); err != nil {
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
	seen, plausible, err := enter(ctx, entry{resource: resource, token: token, source: sqltable.Clean(source)})
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

// Show returns the mark of resource as the transaction sees it, without locking it. Without a
// mark its Token is 0.
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

// Resources lists at most limit resources that have a mark, from the first one at or after
// from, in the order of their bytes. Its cost is proportional to the result.
func (t Table) Resources(ctx context.Context, db driver.SQL, from string, limit int) (list []string, err error) {
	m, err := layout.Open("list marks", from, db, t.Name)
	if err != nil {
		return nil, err
	}
	return sqltable.Column[string](ctx, m, `select resource from {marks} where resource >= ? order by resource limit ?`, from, int64(limit))
}

// Rebase sets the mark of resource to exactly `to`, which may be lower than the current mark,
// or 0. In the same transaction it records from, to, reason and by in the table whose name ends
// in "_rebase". reason and by must not be blank. It returns the replaced mark.
//
// An operator uses it to correct a wrong mark. The operator must know that no holder with a
// token between the two marks is still at work: the guard no longer rejects such a holder.
func (t Table) Rebase(ctx context.Context, db driver.SQL, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	if err := validateRebase(resource, to, reason, by); err != nil {
		return driver.Mark{}, err
	}
	m, err := t.open("rebase", resource, db)
	if err != nil {
		return driver.Mark{}, err
	}
	set := m.rebasePostgres
	if m.Maria() {
		set = m.rebaseMaria
	}
	old, plausible, err := set(ctx, rebase{resource: resource, to: to, reason: reason, by: by})
	switch {
	case err != nil:
		return driver.Mark{}, err
	case !plausible:
		return driver.Mark{}, implausible("rebase", resource, to)
	}
	return old, nil
}

// rebase is a request to set a mark.
type rebase struct {
	resource   string
	to         interlock.Token
	reason, by string
}

// validateRebase checks that a rebase has a reason and an author.
func validateRebase(resource string, to interlock.Token, reason, by string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return failure.Bug("rebase", resource, "a reason is required")
	case strings.TrimSpace(by) == "":
		return failure.Bug("rebase", resource, "an actor is required: by is blank")
	case to < 0 || to > 0 && !to.Valid():
		return failure.Bug("rebase", resource, "%d is not a token", to)
	}
	return nil
}
