package idempotency

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// A Table is the table in which an [SQL] keeps records. The zero value is ready once
// [Table.Create] has created the table.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_idempotency". It
	// is at most 56 bytes, and is trusted: never take it from a request.
	Name string
}

var layout = sqltable.Layout{Part: "idempotency", Default: "interlock_idempotency",
	Tables: map[string]string{"requests": ""}, Indexes: map[string]string{"due": "_due", "old": "_old"}}

// open opens the table for op; errors name about.
func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables}, err
}

// Create creates the table and its indexes unless they exist. Several processes may call it
// concurrently. It takes effect when the transaction commits. On MariaDB it takes effect at
// once, and commits what the transaction did before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	l, err := t.open("create table", "", db)
	if err != nil {
		return err
	}
	return l.Tables.Create(ctx,
		`create table if not exists {requests} (
			scope {string 255} not null,
			operation {string 255} not null,
			`+key+` {string 255} not null,
			fingerprint {string 255} not null,
			owner {string 255} not null,
			attempt bigint not null,
			lease_until {time} not null,
			created_at {time} not null,
			input {bytes} not null,
			points {bytes} not null,{maria 
			finished tinyint not null,}
			finished_at {time},
			keep_until {time},
			status bigint not null,
			header {bytes} not null,
			answer {bytes} not null,
			digest {string 255} not null,
			primary key (scope, operation, `+key+`){maria ,
			key {due} (finished, lease_until),
			key {old} (finished, keep_until)}){maria  engine = InnoDB}`,
		`{pg create index if not exists {due} on {requests} (lease_until) where finished_at is null}`,
		`{pg create index if not exists {old} on {requests} (keep_until) where finished_at is not null}`)
}

// Sweep deletes up to limit finished requests whose retention has passed, and returns how many.
// It is for package guard/sweep. A [Reaper] also reports unfinished requests.
func (t Table) Sweep(ctx context.Context, db driver.SQL, limit int) (int, error) {
	l, err := t.open("remove requests", "", db)
	if err != nil {
		return 0, err
	}
	return l.remove(ctx, limit)
}
