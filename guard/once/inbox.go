package once

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultRetention is how long records are kept if an Inbox does not say.
const DefaultRetention = 7 * 24 * time.Hour

// Inbox records which messages a consumer has had, in a table of the database
// where their effects are. Several consumers may share its tables.
//
// All fields but Consumer may be left out, once [Inbox.Create] made the tables. It
// is safe for concurrent use, with a transaction for each.
type Inbox struct {
	// Name is the table, or schema.table; empty means "interlock_inbox". It is at
	// most 52 bytes, and is trusted: never take it from a request.
	Name string
	// Consumer is who has had a message: 1 to 255 bytes of UTF-8 without NUL. It
	// has no default, since two who forgot it would take each other's messages
	// for their own.
	Consumer string
	// Retention is how long a record is kept at least; 0 means [DefaultRetention].
	// It must be longer than a message can come again after its first delivery,
	// replays of dead letters included: what comes later has its effect again.
	Retention time.Duration
	// Optimistic records a message after its effect. Duplicates at the same time
	// then do not wait for each other: all have their effect, and all but one are
	// rolled back, with a Retryable error. [Inbox.Batch] is not optimistic.
	Optimistic bool
	// Rotated keeps records in generations that [Inbox.Rotate] drops whole, on
	// PostgreSQL. A table is of this form, or of the other, for good.
	Rotated bool
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Once
}

// tables are the tables of an Inbox in one transaction, for one operation. Names are
// compared by their bytes. On MariaDB no count of affected rows is relied on but that
// of rows which certainly change. What decides is read by statements that lock, which
// see what was committed last, whatever the transaction's snapshot shows.
type tables struct {
	sqltable.Tables
	Inbox           // with its Name
	retention int64 // in µs
}

var layout = sqltable.Layout{Part: "once", Default: "interlock_inbox",
	Tables:  map[string]string{"records": "", "sequences": "_sequence", "generation": "_generation", "previous": "_previous"},
	Indexes: map[string]string{"age": "_age", "previous_name": "_previous"}}

// open checks the inbox, and opens its tables for op on what errors say.
func (in Inbox) open(op, about string, db driver.SQL) (tables, error) {
	opened, err := layout.Open(op, about, db, in.Name)
	in.Name = cmp.Or(in.Name, layout.Default)
	t := tables{opened, in, cmp.Or(in.Retention.Microseconds(), DefaultRetention.Microseconds())}
	switch {
	case err != nil:
		return t, err
	case in.Rotated && t.Maria():
		return t, failure.Bug(op, in.Consumer, "a rotated inbox needs PostgreSQL")
	case in.Retention < 0:
		return t, failure.Bug(op, in.Consumer, "a retention of %v", in.Retention)
	}
	return t, named("consumer", in.Consumer)
}

// Create makes the tables, unless they exist: the one of records, one named with
// "_sequence" at the end, and for a rotated inbox "_generation", "_previous" and
// "_g1", "_g2", …. Several processes may do it at once. It takes effect when the
// transaction commits, on MariaDB at once: there it commits what was done in the
// transaction before. Of all who create a rotated inbox the longest Retention holds.
func (in Inbox) Create(ctx context.Context, db driver.SQL) error {
	t, err := in.open("create inbox", "", db)
	if err != nil {
		return err
	}
	if in.Rotated {
		return t.createRotated(ctx)
	}
	return t.Tables.Create(ctx,
		`create table if not exists {records} (
			consumer {name 255} not null,
			message_id {name 255} not null,
			payload_hash {pg bytea}{maria binary(32)} not null,{maria
			repeated tinyint not null,}
			recorded_at {time} not null,
			primary key (consumer, message_id){maria ,
			key (consumer, recorded_at)}){engine}`,
		`{pg create index if not exists {age} on {records} (consumer, recorded_at)}`,
		createSequences)
}

const createSequences = `create table if not exists {sequences} (
	consumer {name 255} not null,
	message_key {name 255} not null,
	epoch bigint not null,
	seq bigint not null,
	payload_hash {pg bytea}{maria binary(32)},
	moved_at {time} not null,
	primary key (consumer, message_key)){engine}`
