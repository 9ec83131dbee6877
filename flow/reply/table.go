package reply

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

const (
	// MaxResult is the longest result, and the longest reason of a refusal, in bytes.
	MaxResult = 1 << 20
	// DefaultRetention is the default of Table.Retention.
	DefaultRetention = 7 * 24 * time.Hour
)

// Table keeps the results of messages in a database, PostgreSQL or MariaDB. Call [Table.Create] once; the
// zero value works. It is safe for concurrent use, with a transaction for each call.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_reply". It has at most 50 bytes and is
	// not escaped: never take it from a request.
	Name string
	// Retention is how long Sweep keeps a result; 0 means [DefaultRetention]. It must be longer than
	// the time from the first to the last delivery or call of a message, including replays of dead
	// letters. A message whose result was deleted has its effects again.
	Retention time.Duration
}

var layout = sqltable.Layout{Part: "reply", Default: "interlock_reply",
	Tables: map[string]string{"replies": ""}, Indexes: map[string]string{"age": "_age"}}

// States of a message.
const (
	none = iota // no row
	done
	refused
	cancelled
)

// record is the row of a message.
type record struct {
	state   int64
	owner   string // of the attempt that wrote it
	hash    string // of the payload; empty if cancelled
	content []byte // the result, or the reason of a refusal
}

func newRecord(state int64, payload, content []byte) record {
	sum := sha256.Sum256(payload)
	return record{state, rand.Text(), string(sum[:]), append([]byte{}, content...)}
}

// Create creates the table unless it exists. Several processes may call it at the same time. It takes
// effect when the transaction commits; on MariaDB at once, where it also commits the transaction's
// earlier statements.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	r, err := layout.Open("create replies", "", db, t.Name)
	if err != nil {
		return err
	}
	return r.Create(ctx,
		`create table if not exists {replies} (
			message_id {name 255} not null primary key,
			state int not null,
			owner {word 64} not null,
			payload_hash {bytes} not null,
			content {bytes} not null,
			replied_at {time} not null{maria ,
			key age (replied_at)}){engine}`,
		`{pg create index if not exists {age} on {replies} (replied_at)}`)
}

// Sweep deletes up to limit results that are older than Retention by the database's clock, and
// returns how many. It is for package guard/sweep.
func (t Table) Sweep(ctx context.Context, db driver.SQL, limit int) (int, error) {
	const op = "sweep replies"
	if t.Retention < 0 || limit < 1 {
		return 0, failure.Bug(op, t.Name, "a retention of %v, a limit of %d", t.Retention, limit)
	}
	if t.Retention == 0 {
		t.Retention = DefaultRetention
	}
	r, err := layout.Open(op, "", db, t.Name)
	if err != nil {
		return 0, err
	}
	n, err := r.Delete(ctx, sqltable.Deletion{Table: "replies", Key: "message_id", Where: `replied_at < {start} - {span}`,
		Args: []any{t.Retention.Microseconds()}, Order: "replied_at", Limit: limit})
	return int(n), err
}

const columns = `select state, owner, payload_hash, content from {replies} where message_id = ?`

// read returns the record of a message; its state is none if there is no row.
func (t Table) read(ctx context.Context, op string, db driver.SQL, id, query string) (r record, err error) {
	rows, err := layout.Open(op, id, db, t.Name)
	if err != nil {
		return r, err
	}
	var hash []byte
	_, err = rows.Row(ctx, query, []any{id}, &r.state, &r.owner, &hash, &r.content)
	r.hash = string(hash)
	return r, err
}

// write inserts the record of a message unless there is one, and returns the stored one. It waits for
// concurrent writes.
func (t Table) write(ctx context.Context, op string, db driver.SQL, id string, r record) (record, error) {
	rows, err := layout.Open(op, id, db, t.Name)
	if err != nil {
		return r, err
	}
	_, err = rows.Exec(ctx, `insert into {replies} (message_id, state, owner, payload_hash, content, replied_at)
		values (?, ?, ?, {?}, {?}, {now}) {leave message_id}`, id, r.state, r.owner, []byte(r.hash), r.content)
	if err != nil {
		return r, err
	}
	return t.read(ctx, op, db, id, columns+` {share}`)
}
