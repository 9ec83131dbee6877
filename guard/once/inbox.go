package once

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
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

// tables are an Inbox as statements need it: names are quoted.
type tables struct {
	records, sequences, age string
	generation, previous    string // of a rotated one
	name                    string // as the user gave it, for the names of partitions
	consumer                string
	retention               int64 // in µs
}

// open checks the inbox, and finds out how to talk to db about op.
func (in Inbox) open(op string, db driver.SQL) (dialect, tables, error) {
	if db == nil {
		return nil, tables{}, failure.Bug(op, in.Consumer, "there is no transaction")
	}
	d, err := in.speak(op, db)
	if err != nil {
		return nil, tables{}, err
	}
	if err := named("consumer", in.Consumer); err != nil {
		return nil, tables{}, err
	}
	if in.Retention < 0 {
		return nil, tables{}, failure.Bug(op, in.Consumer, "a retention of %v", in.Retention)
	}
	t, err := in.quoted(db.Dialect())
	return d, t, err
}

func (in Inbox) quoted(d driver.Dialect) (t tables, err error) {
	t.name, t.consumer, t.retention = in.Name, in.Consumer, in.Retention.Microseconds()
	if t.name == "" {
		t.name = "interlock_inbox"
	}
	if t.retention == 0 {
		t.retention = DefaultRetention.Microseconds()
	}
	for _, n := range []struct {
		to     *string
		suffix string
	}{{&t.generation, "_generation"}, {&t.records, ""}, {&t.sequences, "_sequence"}, {&t.previous, "_previous"}} {
		if *n.to, err = sqltext.Identifier(d, t.name, n.suffix); err != nil {
			return t, err
		}
	}
	t.age, err = sqltext.Identifier(d, unqualified(t.name), "_age")
	return t, err
}

// unqualified is a table's name without its schema.
func unqualified(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// Create makes the tables, unless they exist: the one of records, one named with
// "_sequence" at the end, and for a rotated inbox "_generation", "_previous" and
// "_g1", "_g2", …. Several processes may do it at once. It takes effect when the
// transaction commits, on MariaDB at once: there it commits what was done in the
// transaction before. Of all who create a rotated inbox the longest Retention holds.
func (in Inbox) Create(ctx context.Context, db driver.SQL) error {
	const op = "create inbox"
	d, t, err := in.open(op, db)
	if err != nil {
		return err
	}
	return about(op, t.name, d.create(ctx, db, t))
}
