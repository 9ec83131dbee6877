package once

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/guard/sweep"
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

// A Consumer is an inbox in the database at a URL. It is safe for concurrent use.
type Consumer struct {
	inbox   Inbox
	db      driver.BeginnerAt[interlock.SQL]
	sweeper *sweep.Sweeper
	backend *backend.Backend
}

// Open connects to the database at a URL, such as postgres://127.0.0.1/shop, and creates the
// tables of the inbox unless they exist. It deletes old records in the background until
// [Consumer.Close]; see [Inbox.Sweep]. The program must import the driver of the URL's scheme
// (see lock.Open). ctx bounds only the opening. [Tx] needs no Consumer and works on the user's
// own pool.
func Open(ctx context.Context, url string, in Inbox) (*Consumer, error) {
	b, db, err := backend.OpenSQL(ctx, url, in)
	if err != nil {
		return nil, err
	}
	s, err := sweep.New(db, nil, in)
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	return &Consumer{inbox: in, db: db, sweeper: s, backend: b}, nil
}

// Receive records m in a new transaction, runs fn there if m is new, and commits both; see
// [Tx].
func (c *Consumer) Receive(ctx context.Context, m Message, fn func(ctx context.Context, tx interlock.SQL) error) (Outcome, error) {
	return Tx(ctx, c.db, c.inbox, m, fn)
}

// Close stops deleting old records, and disconnects. It waits for running work, or until ctx
// ends.
func (c *Consumer) Close(ctx context.Context) error {
	_ = c.sweeper.Close(ctx) // it has no connection of its own
	return c.backend.Close(ctx)
}

// advance moves key to p if p comes next, and reports whether it did. It waits for other
// transactions that move key. The condition is checked on the locked row. The first number of
// an epoch may find no row.
func (t tables) advance(ctx context.Context, key string, p place) (moved bool, err error) {
	condition, args := `epoch < ?`, []any{p.epoch, p.seq, p.hash, t.Consumer, key, p.epoch}
	switch {
	case p.seq > 1:
		condition, args = `epoch = ? and seq = ?`, append(args, p.seq-1)
	case t.Maria():
		err = t.touch(ctx, key)
	default:
		n, err := t.Exec(ctx, insertPlace+`where s.epoch < ?`, args...)
		return n > 0, err
	}
	if err != nil {
		return false, err
	}
	n, err := t.Exec(ctx, `update {sequences} set epoch = ?, seq = ?, payload_hash = ?, moved_at = {now}
where consumer = ? and message_key = ? and `+condition, args...)
	return n > 0, err
}

// insertPlace sets the place of a key on PostgreSQL, under a condition that follows.
const insertPlace = `
insert into {sequences} as s (epoch, seq, payload_hash, consumer, message_key, moved_at) values (?, ?, ?, ?, ?, {now})
on conflict (consumer, message_key) do update set epoch = excluded.epoch, seq = excluded.seq,
	payload_hash = excluded.payload_hash, moved_at = excluded.moved_at
`

// touch inserts the row of a key on MariaDB, if there is none, and locks the row. A new row has
// the epoch of nowhere.
func (t tables) touch(ctx context.Context, key string) error {
	_, err := t.Exec(ctx, `insert into {sequences} (consumer, message_key, epoch, seq, moved_at) values (?, ?, -1, 0, {now})
on duplicate key update message_key = values(message_key)`, t.Consumer, key)
	return err
}

// place reads the place of key, or nowhere if key has no row. lock is the end of the query.
func (t tables) place(ctx context.Context, key, lock string) (place, error) {
	p := nowhere
	_, err := t.Row(ctx, `select epoch, seq, payload_hash from {sequences} where consumer = ? and message_key = ?`+lock,
		[]any{t.Consumer, key}, &p.epoch, &p.seq, &p.hash)
	return p, err
}

// skip moves key to p, unless key is at p or beyond.
func (t tables) skip(ctx context.Context, key string, p place) (err error) {
	args := []any{p.epoch, p.seq, nil, t.Consumer, key, p.epoch, p.epoch, p.seq}
	query := insertPlace + `where s.epoch < ? or s.epoch = ? and s.seq < ?`
	if t.Maria() {
		if err := t.touch(ctx, key); err != nil {
			return err
		}
		query = `update {sequences} set epoch = ?, seq = ?, payload_hash = ?, moved_at = {now}
where consumer = ? and message_key = ? and (epoch < ? or epoch = ? and seq < ?)`
	}
	_, err = t.Exec(ctx, query, args...)
	return err
}

// report calls the hook for what was found of a message; h may be nil.
func report(h *observe.Once, consumer string, m Message, outcome Outcome, err error) {
	if outcome == Done {
		return
	}
	h = h.WithDefaults()
	about := observe.OnceMessage{Consumer: consumer, ID: m.ID, Key: m.Key, Epoch: m.Epoch, Seq: m.Seq}
	var gap *GapError
	switch {
	case outcome == Duplicate && h.Duplicate != nil:
		h.Duplicate(about)
	case outcome == Mismatched && h.Mismatched != nil:
		h.Mismatched(about)
	case outcome == Undone && errors.As(err, &gap) && h.Gap != nil:
		h.Gap(observe.OnceGap(*gap))
	}
}

func reportCleaned(h *observe.Once, e observe.OnceCleaned) {
	if h = h.WithDefaults(); h.Cleaned != nil {
		h.Cleaned(e)
	}
}
