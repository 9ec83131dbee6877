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

// DefaultRetention is the default of Inbox.Retention.
const DefaultRetention = 7 * 24 * time.Hour

// Inbox records the messages that a consumer has processed, in a table of the database where
// their effects are. Several consumers may share its tables.
//
// All fields except Consumer are optional. [Inbox.Create] creates the tables. It is safe for
// concurrent use, with one transaction each.
type Inbox struct {
	// Name is the table, or schema.table; empty means "interlock_inbox". It is at
	// most 52 bytes, and is trusted: never take it from a request.
	Name string
	// Consumer names the consumer of the messages: 1 to 255 bytes of UTF-8 without NUL. It has
	// no default, because two consumers with the same default would treat each other's messages
	// as duplicates.
	Consumer string
	// Retention is the minimum time for which a record is kept; 0 means [DefaultRetention]. It
	// must be longer than the time between the first and the last delivery of a message,
	// including replays of dead letters. A later delivery has its effect again.
	Retention time.Duration
	// Optimistic records a message after its effect. Then concurrent duplicates do not wait for
	// each other: all run their effect, and all but one are rolled back with a Retryable error.
	// [Inbox.Batch] ignores it.
	Optimistic bool
	// Rotated keeps records in generations that [Inbox.Rotate] drops as a whole, on PostgreSQL.
	// A table cannot change between this form and the other.
	Rotated bool
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Once
}

// tables are the tables of an Inbox in one transaction, for one operation. Names are compared
// by their bytes. On MariaDB, counts of affected rows are used only for rows that certainly
// change. Decisions are based on locking reads, which see the last commit, whatever the
// transaction's snapshot.
type tables struct {
	sqltable.Tables
	Inbox           // with its Name
	retention int64 // in µs
}

var layout = sqltable.Layout{Part: "once", Default: "interlock_inbox",
	Tables:  map[string]string{"records": "", "sequences": "_sequence", "generation": "_generation", "previous": "_previous"},
	Indexes: map[string]string{"age": "_age", "previous_name": "_previous"}}

// open validates the inbox, and opens its tables for op; errors name about.
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
	return t, validateName("consumer", in.Consumer)
}

// Create creates the tables unless they exist: the records, the suffix "_sequence", and for a
// rotated inbox "_generation", "_previous" and "_g1", "_g2", …. Several processes may call it
// concurrently. It takes effect when the transaction commits. On MariaDB it takes effect at
// once, and commits what the transaction did before. If several processes create a rotated
// inbox, the longest Retention applies.
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
