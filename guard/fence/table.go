package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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

func (t Table) quoted(suffix string) (string, error) {
	if t.Name == "" {
		t.Name = "interlock_fence"
	}
	if _, err := quoted(t.Name, rebaseSuffix); err != nil {
		return "", err
	}
	return quoted(t.Name, suffix)
}

// Create makes the table of marks, and a second one, named with "_rebase" at
// the end, that records rebases, unless they exist. Several processes may do it
// at once. It takes effect when the transaction commits.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	marks, err := t.quoted("")
	if err != nil {
		return err
	}
	audit, _ := t.quoted(rebaseSuffix)
	if err := usable("create table", db, marks); err != nil {
		return err
	}
	for _, query := range []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock fence: create', 0))`,
		`create table if not exists ` + marks + ` (
			resource text primary key,
			token bigint not null,
			previous bigint not null,
			source text not null,
			raised_at timestamptz not null)`,
		`create table if not exists ` + audit + ` (
			id bigint generated always as identity primary key,
			resource text not null,
			from_token bigint not null,
			to_token bigint not null,
			reason text not null,
			rebased_by text not null,
			rebased_at timestamptz not null)`,
	} {
		if _, err := db.Exec(ctx, query); err != nil {
			return about("create table", marks, err)
		}
	}
	return nil
}

// enterTable is one statement. It writes the row whatever the tokens are, since
// that is what locks it, makes a transaction of repeatable reads that began too
// early fail, and tells by column previous, exactly and without a second look,
// what had been seen. It writes nothing for an implausible token.
const enterTable = `
insert into %[1]s as mark (resource, token, previous, source, raised_at)
select $1::text, $2::bigint, 0, $3::text, clock_timestamp() where $2::bigint <= %[2]s
on conflict (resource) do update set
	previous = mark.token,
	token = greatest(mark.token, excluded.token),
	source = case when mark.token < excluded.token then excluded.source else mark.source end,
	raised_at = case when mark.token < excluded.token then excluded.raised_at else mark.raised_at end
returning previous`

// Enter raises the mark of resource, 1 to 512 bytes of UTF-8, as [Marks] says.
// A token that lies more than [interlock.MaxAhead] beyond the database's clock
// is an [interlock.ErrImplausibleToken] and changes nothing. Any other error is
// that of the database, with its kind.
func (t Table) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	if err := admit(db, resource, token); err != nil {
		return err
	}
	table, err := t.quoted("")
	if err != nil {
		return err
	}
	var seen interlock.Token
	plausible := false
	err = db.Query(ctx, fmt.Sprintf(enterTable, table, tokenLimit), []any{resource, int64(token), label(source)},
		func(scan func(...any) error) error {
			plausible = true
			return scan((*int64)(&seen))
		})
	switch {
	case err != nil:
		return t.failed("enter", resource, err)
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
	return t.read(ctx, db, "show mark", resource, "")
}

func (t Table) read(ctx context.Context, db driver.SQL, op, resource, locking string) (driver.Mark, error) {
	if err := usable(op, db, resource); err != nil {
		return driver.Mark{}, err
	}
	table, err := t.quoted("")
	if err != nil {
		return driver.Mark{}, err
	}
	var m driver.Mark
	err = db.Query(ctx, `select token, source, raised_at from `+table+` where resource = $1::text `+locking, []any{resource},
		func(scan func(...any) error) error {
			var raised time.Time
			defer func() { m.Raised = raised.UTC() }()
			return scan((*int64)(&m.Token), &m.Source, &raised)
		})
	return m, t.failed(op, resource, err)
}

// failed is about with the usual reason spelled out.
func (t Table) failed(op, resource string, err error) error {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && state.SQLState() == "42P01" {
		return &interlock.Error{Op: op, Name: resource, Kind: interlock.Definite,
			Err: fmt.Errorf("the guard's table is missing, make it with Table.Create: %w", err)}
	}
	return about(op, resource, err)
}
