package fence

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
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

// quoted is the names of the table of marks and of the one of rebases.
func (t Table) quoted(d driver.Dialect) (marks, audit string, err error) {
	if t.Name == "" {
		t.Name = "interlock_fence"
	}
	if audit, err = sqltext.Identifier(d, t.Name, rebaseSuffix); err == nil {
		marks, err = sqltext.Identifier(d, t.Name, "")
	}
	return marks, audit, err
}

// Create makes the table of marks, and a second one, named with "_rebase" at
// the end, that records rebases, unless they exist. Several processes may do it
// at once. It takes effect when the transaction commits, on MariaDB at once: there
// it commits what was done in the transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	marks, audit, err := t.quoted(db.Dialect())
	if err != nil {
		return err
	}
	d, err := usable("create table", db, marks)
	if err != nil {
		return err
	}
	for _, query := range d.create(marks, audit) {
		if _, err := db.Exec(ctx, query); err != nil {
			return failure.About("create table", marks, err)
		}
	}
	return nil
}

// Enter raises the mark of resource, 1 to 512 bytes of UTF-8, as [Marks] says.
// A token that lies more than [interlock.MaxAhead] beyond the database's clock
// is an [interlock.ErrImplausibleToken] and changes nothing. Any other error is
// that of the database, with its kind.
func (t Table) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	d, err := admit(db, resource, token)
	if err != nil {
		return err
	}
	marks, _, err := t.quoted(db.Dialect())
	if err != nil {
		return err
	}
	seen, plausible, err := d.enter(ctx, db, marks, entry{resource: resource, token: token, source: label(source)})
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
	const op = "show mark"
	d, err := usable(op, db, resource)
	if err != nil {
		return driver.Mark{}, err
	}
	marks, _, err := t.quoted(db.Dialect())
	if err != nil {
		return driver.Mark{}, err
	}
	m, err := d.show(ctx, db, marks, resource)
	return m, t.failed(op, resource, err)
}

// Resources lists resources that have a mark, at most limit: from the first that is not
// before from, in the order of the database. It costs as much as it returns.
func (t Table) Resources(ctx context.Context, db driver.SQL, from string, limit int) (list []string, err error) {
	const op = "list marks"
	marks, _, err := t.quoted(db.Dialect())
	if err != nil {
		return nil, err
	}
	where := map[driver.Dialect]string{driver.Postgres: `$1::text order by resource limit $2::bigint`, driver.MariaDB: `? order by resource limit ?`}[db.Dialect()]
	err = db.Query(ctx, `select resource from `+marks+` where resource >= `+where, []any{from, int64(limit)}, func(scan func(...any) error) error {
		var resource string
		err := scan(&resource)
		list = append(list, resource)
		return err
	})
	return list, t.failed(op, from, err)
}

// failed tells a database's error as one of op on resource.
func (t Table) failed(op, resource string, err error) error {
	return failure.Table(op, resource, "fence", err)
}
