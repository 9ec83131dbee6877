package version

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// Table keeps stamps in a table of their own, one row an entity. It protects
// whatever is done in the transaction that applied the change, rows of any
// tables, as long as all who touch them apply to the same entity. An entity
// need not exist: the stamp of a change that came before it, or of its deletion,
// is there.
//
// The zero value is ready once [Table.Create] made the table. It is safe for
// concurrent use, with a transaction for each.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_version". It is
	// at most 55 bytes, and is trusted: never take it from a request.
	Name string
}

var _ Guard = Table{}

// State is what a [Table] knows of an entity. The zero State is that of one that
// it does not know.
type State struct {
	Stamp    Stamp
	Deleted  bool
	Terminal bool
	Changed  time.Time // when it was applied, by the database's clock
}

const indexSuffix = "_deleted"

// quoted is the names of the table and of its index.
func (t Table) quoted(d driver.Dialect) (table, index string, err error) {
	if t.Name == "" {
		t.Name = "interlock_version"
	}
	if table, err = sqltext.Identifier(d, t.Name, ""); err == nil {
		_, name, schema := strings.Cut(t.Name, ".")
		if !schema {
			name = t.Name
		}
		index, err = sqltext.Identifier(d, name, indexSuffix)
	}
	return table, index, err
}

// Create makes the table, and an index for [Table.Purge], unless they exist.
// Several processes may do it at once. It takes effect when the transaction
// commits, on MariaDB at once: there it commits what was done in the transaction
// before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	const op = "create table"
	table, index, err := t.quoted(db.Dialect())
	if err != nil {
		return err
	}
	d, err := speak(op, db, table)
	if err != nil {
		return err
	}
	for _, query := range d.create(table, index) {
		if _, err := db.Exec(ctx, query); err != nil {
			return failure.About(op, table, err)
		}
	}
	return nil
}

// Apply judges and keeps a change, as [Guard] says, by one statement. On
// PostgreSQL a second one finds out the outcome if another transaction applied a
// newer change at the same time. An error is that of the database, with its kind.
//
// Where a transaction of repeatable reads would apply a change by a snapshot from
// before the last one, PostgreSQL fails, Retryable, and so does MariaDB where
// innodb_snapshot_isolation is on. Where it is off MariaDB judges by what was
// committed last, and the transaction reads on in its old snapshot: there more
// than elsewhere, apply before you read.
func (t Table) Apply(ctx context.Context, db driver.SQL, c Change) (Outcome, error) {
	const op = "apply change"
	if err := c.check(op); err != nil {
		return Stale, err
	}
	d, table, err := t.opened(op, db, c.Entity)
	if err != nil {
		return Stale, err
	}
	o, err := d.apply(ctx, db, table, c)
	return o, failed(op, c.Entity, err)
}

// Show tells what is known of an entity as the transaction sees it, without
// locking it.
func (t Table) Show(ctx context.Context, db driver.SQL, entity string) (State, error) {
	const op = "show version"
	if err := named(op, entity); err != nil {
		return State{}, err
	}
	d, table, err := t.opened(op, db, entity)
	if err != nil {
		return State{}, err
	}
	s, err := d.show(ctx, db, table, entity)
	return s, failed(op, entity, err)
}

// Purge removes the stamps of entities that were deleted longer than age ago, by
// the database's clock, and returns how many: at most limit, of which 0 means
// 1000. Call it again, in a transaction of its own, while it returns as many.
//
// After that nothing is known of them: a change from before the deletion that
// comes only now, by a replay or out of a dead-letter queue, brings the entity
// back. age must be longer than any change can take, so at least as long as its
// topic keeps it. Stamps of entities that were not deleted stay for ever,
// terminal ones too. age must be above 0, else it is a Bug.
func (t Table) Purge(ctx context.Context, db driver.SQL, age time.Duration, limit int) (int64, error) {
	const op = "purge tombstones"
	d, table, err := t.opened(op, db, t.Name)
	if err != nil {
		return 0, err
	}
	if age <= 0 || limit < 0 {
		return 0, bug(op, table, fmt.Errorf("an age of %v and a limit of %d are not possible", age, limit))
	}
	if limit == 0 {
		limit = 1000
	}
	n, err := d.purge(ctx, db, table, age, limit)
	return n, failed(op, table, err)
}

func (t Table) opened(op string, db driver.SQL, name string) (d dialect, table string, err error) {
	if table, _, err = t.quoted(db.Dialect()); err == nil {
		d, err = speak(op, db, name)
	}
	return d, table, err
}

// failed is about and names the command that creates the table.
func failed(op, name string, err error) error {
	return failure.Table(op, name, "version", err)
}
