package version

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
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

var layout = sqltable.Layout{Part: "version", Default: "interlock_version",
	Tables: map[string]string{"stamps": ""}, Indexes: map[string]string{"tombstones": "_deleted"}}

// stamps is the table in one transaction.
type stamps struct{ sqltable.Tables }

func (t Table) open(op, about string, db driver.SQL) (stamps, error) {
	s, err := layout.Open(op, about, db, t.Name)
	return stamps{s}, err
}

// Create makes the table, and an index for [Table.Purge], unless they exist.
// Several processes may do it at once. It takes effect when the transaction
// commits, on MariaDB at once: there it commits what was done in the transaction
// before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	s, err := t.open("create table", "", db)
	if err != nil {
		return err
	}
	return s.Tables.Create(ctx,
		`create table if not exists {stamps} (
			entity {name 512} not null primary key,
			{pg version bigint not null,
			tie text collate "C" not null,
			deleted boolean not null,
			terminal boolean not null,}{maria stamp varbinary(275) not null,
			deleted tinyint not null,
			repeated bigint not null,}
			changed_at {time} not null{maria ,
			index (deleted, changed_at)}){engine}`,
		`{pg create index if not exists {tombstones} on {stamps} (changed_at) where deleted}`)
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
	s, err := t.open(op, c.Entity, db)
	if err != nil {
		return Stale, err
	}
	if s.Maria() {
		return s.applyMaria(ctx, c)
	}
	return s.applyPostgres(ctx, c)
}

// Show tells what is known of an entity as the transaction sees it, without
// locking it.
func (t Table) Show(ctx context.Context, db driver.SQL, entity string) (State, error) {
	const op = "show version"
	if err := named(op, entity); err != nil {
		return State{}, err
	}
	s, err := t.open(op, entity, db)
	if err != nil {
		return State{}, err
	}
	if s.Maria() {
		return s.showMaria(ctx, entity)
	}
	return s.showPostgres(ctx, entity)
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
	s, err := t.open("purge tombstones", "", db)
	if err != nil {
		return 0, err
	}
	if age <= 0 || limit < 0 {
		return 0, s.Bug("an age of %v and a limit of %d are not possible", age, limit)
	}
	return s.Delete(ctx, sqltable.Deletion{Table: "stamps", Key: "entity",
		Where: `deleted{maria  = 1} and changed_at < {now} - {span}`, Args: []any{age.Microseconds()},
		Order: "changed_at", Limit: cmp.Or(limit, 1000)})
}
