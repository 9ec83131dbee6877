package version

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Table stores stamps in a table of their own, one row per entity. It protects everything in
// the transaction that applied the change: rows of any tables, if all transactions that access
// them apply to the same entity. An entity need not exist: the stamp of an earlier change, or
// of its deletion, is stored.
//
// The zero value is ready once [Table.Create] has created the table. It is safe for concurrent
// use, with one transaction each.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_version". It is
	// at most 55 bytes, and is trusted: never take it from a request.
	Name string
}

var _ Guard = Table{}

// State is what a [Table] stores about an entity. The zero State is that of an unknown entity.
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

// Create creates the table, and an index for [Table.Purge], unless they exist. Several
// processes may call it concurrently. It takes effect when the transaction commits. On MariaDB
// it takes effect at once, and commits what the transaction did before.
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

// Apply compares and stores a change, as [Guard] describes, in one statement. On PostgreSQL a
// second statement reads the outcome if another transaction applied a newer change
// concurrently. An error is that of the database, with its kind.
//
// A repeatable-read transaction may have a snapshot from before the last change. Then
// PostgreSQL returns a Retryable error, and so does MariaDB with innodb_snapshot_isolation on.
// With it off, MariaDB compares with the last commit, but the transaction still reads its old
// snapshot. So there, above all, apply before you read.
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

// Show returns the state of an entity as the transaction sees it, without locking it.
func (t Table) Show(ctx context.Context, db driver.SQL, entity string) (State, error) {
	const op = "show version"
	if err := validateEntity(op, entity); err != nil {
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

// Purge deletes the stamps of entities that were deleted longer than age ago, by the database's
// clock, and returns how many: at most limit, where 0 means 1000. Call it again, each time in a
// transaction of its own, while it returns that many.
//
// After that the entities are unknown: a change from before the deletion that arrives only now,
// by a replay or from a dead-letter queue, restores the entity. So age must be longer than any
// change can take, at least as long as its topic keeps it. Stamps of entities that were not
// deleted stay forever, including terminal ones. age must be above 0; otherwise the error is a
// Bug.
func (t Table) Purge(ctx context.Context, db driver.SQL, age time.Duration, limit int) (int64, error) {
	s, err := t.open("purge tombstones", "", db)
	if err != nil {
		return 0, err
	}
	if age <= 0 || limit < 0 {
		return 0, s.Bug("an age of %v, a limit of %d", age, limit)
	}
	return s.Delete(ctx, sqltable.Deletion{Table: "stamps", Key: "entity",
		Where: `deleted{maria  = 1} and changed_at < {start} - {span}`, Args: []any{age.Microseconds()},
		Order: "changed_at", Limit: cmp.Or(limit, 1000)})
}
