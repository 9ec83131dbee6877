package once

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

var errOvertaken = errors.New("another transaction has applied the same message: roll back and retry; then it is a duplicate")

// Once records m in the caller's transaction and runs fn, which has m's effect there, unless m
// was recorded before. It takes one statement, two for a duplicate on PostgreSQL, and two on
// MariaDB for a message that begins an epoch. It returns:
//
//   - [Done] if fn ran. It takes effect when the caller has committed
//   - [Duplicate] if fn did not run, because the transaction that ran it has committed
//   - [Mismatched] and a [MismatchError], if another payload was recorded
//   - [Undone] and a [GapError], if an earlier message of its key is missing
//   - Undone and any other error. An error of fn is returned unchanged
//
// Once fn has begun, an error or a panic makes the transaction fail. Nothing in it can be
// committed any more, so there is no record without its effect. MariaDB rolls back at once;
// code that then uses the client's own handle writes outside of the transaction. There is one
// exception on MariaDB: if a statement by way of db timed out waiting for a lock, db cannot
// roll back. The record then stays in the transaction until the caller ends it. After any error
// other than those two types the caller must roll back too.
func (in Inbox) Once(ctx context.Context, db driver.SQL, m Message, fn func(ctx context.Context) error) (Outcome, error) {
	var outcome Outcome
	err := transact.Whole(ctx, db, halfDone, func(begin func()) (err error) {
		outcome, err = in.once(ctx, db, m, withBegin(begin, fn))
		return err
	})
	return outcome, err
}

// withBegin returns fn that calls begin first.
func withBegin(begin func(), fn func(context.Context) error) func(context.Context) error {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context) error {
		begin()
		return fn(ctx)
	}
}

// halfDone is the reason why a transaction whose effect failed cannot be committed.
const halfDone = "the effect of a message failed: its record must not be committed"

// once runs Once, and leaves the transaction to its caller.
func (in Inbox) once(ctx context.Context, db driver.SQL, m Message, fn func(context.Context) error) (outcome Outcome, err error) {
	t, err := in.admit(db, m, fn != nil)
	if err != nil {
		return Undone, err
	}
	switch {
	case m.Seq > 0:
		outcome, err = t.follow(ctx, m, fn)
	case in.Optimistic:
		outcome, err = t.late(ctx, m, fn)
	default:
		outcome, err = t.early(ctx, m, fn)
	}
	report(in.Hooks, in.Consumer, m, outcome, err)
	return outcome, err
}

// admit validates what is known before the first statement.
func (in Inbox) admit(db driver.SQL, m Message, effect bool) (tables, error) {
	if !effect {
		return tables{}, failure.Bug("receive", m.name(), "a function for the effect is required")
	}
	if err := m.check(); err != nil {
		return tables{}, err
	}
	return in.open("receive", m.name(), db)
}

// early records before the effect.
func (t tables) early(ctx context.Context, m Message, fn func(context.Context) error) (Outcome, error) {
	found, err := t.record(ctx, []entry{{m.ID, m.hash()}})
	if err != nil {
		return Undone, err
	}
	if found[m.ID].fresh {
		return finished(fn(ctx))
	}
	return t.classify(m, found)
}

// late records after the effect, unless a read shows that it is a duplicate.
func (t tables) late(ctx context.Context, m Message, fn func(context.Context) error) (Outcome, error) {
	found, err := t.look(ctx, []string{m.ID})
	if err != nil {
		return Undone, err
	}
	if _, ok := found[m.ID]; ok {
		return t.classify(m, found)
	}
	if err := fn(ctx); err != nil {
		return Undone, err
	}
	found, err = t.record(ctx, []entry{{m.ID, m.hash()}})
	if err == nil && !found[m.ID].fresh {
		return Undone, overtaken(m)
	}
	return finished(err)
}

// classify distinguishes a duplicate from another message of the same ID.
func (in Inbox) classify(m Message, found map[string]finding) (Outcome, error) {
	f, ok := found[m.ID]
	switch {
	case !ok: // it conflicted with what Clean has deleted since
		return Undone, retryable("receive", m.name(), "its record was cleaned away meanwhile")
	case !m.same(f.hash):
		return Mismatched, &MismatchError{Consumer: in.Consumer, Message: m.name()}
	}
	return Duplicate, nil
}

func finished(err error) (Outcome, error) {
	if err != nil {
		return Undone, err
	}
	return Done, nil
}

// entry is a record to be written.
type entry struct {
	id   string
	hash []byte
}

// finding is the record of an id.
type finding struct {
	fresh bool // this transaction has just written it
	hash  []byte
}

// record writes entries unless they exist, and returns the finding of each. Entries have
// different ids and are written in their order. It waits for other transactions that write
// them.
//
// On PostgreSQL the ids are one parameter, a JSON text. So the statement is the same for any
// number of ids, and any client can send it. A second statement reads the records that existed,
// because the first one's snapshot may be older than a transaction that it waited for.
func (t tables) record(ctx context.Context, entries []entry) (map[string]finding, error) {
	if t.Maria() {
		return t.recordMaria(ctx, entries)
	}
	query, args := recordPostgres, []any{t.Consumer, entriesJSON(entries)}
	if t.Rotated {
		query, args = recordRotated, append(args, t.Consumer)
	}
	found, err := t.find(ctx, query, args)
	if err != nil {
		return nil, rotatedMeanwhile(err)
	}
	var old []string
	for _, e := range entries {
		if !found[e.id].fresh {
			old = append(old, e.id)
		}
	}
	if len(old) == 0 {
		return found, nil
	}
	others, err := t.look(ctx, old)
	maps.Copy(found, others)
	return found, err
}

// recordPostgres returns the ids that are new. On a conflict with a row of a running
// transaction it waits for the end of that transaction. If it then finds a row that its
// snapshot does not show, it continues at READ COMMITTED and fails at higher levels.
const recordPostgres = `
insert into {records} (consumer, message_id, payload_hash, recorded_at)
select ?::text, e.id, decode(e.hash, 'hex'), {now}
from json_to_recordset(?::json) as e(id text, hash text)
order by e.id collate "C"
on conflict (consumer, message_id) do nothing
returning message_id, 0, payload_hash`

func entriesJSON(entries []entry) string {
	type pair struct {
		ID   string `json:"id"`
		Hash string `json:"hash"`
	}
	pairs := make([]pair, len(entries))
	for i, e := range entries {
		pairs[i] = pair{e.id, hex.EncodeToString(e.hash)}
	}
	text, _ := json.Marshal(pairs) // strings alone: it cannot fail
	return string(text)
}

// recordMaria records by one statement: column repeated shows whether a row existed. It changes
// a row only at its first repetition. RETURNING shows the current rows, whatever the
// transaction's snapshot. INSERT IGNORE is not used, because it turns other errors into
// warnings too.
func (t tables) recordMaria(ctx context.Context, entries []entry) (map[string]finding, error) {
	args := make([]any, 0, 3*len(entries))
	for _, e := range entries {
		args = append(args, t.Consumer, e.id, e.hash)
	}
	return t.find(ctx, `insert into {records} (consumer, message_id, payload_hash, repeated, recorded_at)
values (?, ?, ?, 0, {now})`+strings.Repeat(`, (?, ?, ?, 0, {now})`, len(entries)-1)+`
on duplicate key update repeated = 1
returning message_id, repeated, payload_hash`, args)
}

// look returns the records that exist. Unlike record, it writes nothing and does not wait.
func (t tables) look(ctx context.Context, ids []string) (map[string]finding, error) {
	args := []any{t.Consumer}
	where := ` where consumer = ? and message_id = any(array(select json_array_elements_text(?::json) collate "C"))`
	if t.Maria() {
		where = ` where consumer = ? and message_id in (?` + strings.Repeat(`, ?`, len(ids)-1) + `)`
		for _, id := range ids {
			args = append(args, id)
		}
	} else {
		text, _ := json.Marshal(ids) // strings alone: it cannot fail
		args = append(args, string(text))
	}
	query := `select message_id, 1, payload_hash from {records}` + where
	if t.Rotated {
		query += ` union all select message_id, 1, payload_hash from {previous}` + where
		args = append(args, args...)
	}
	return t.find(ctx, query, args)
}

// find runs a query whose rows are an id, whether it was repeated, and a hash.
func (t tables) find(ctx context.Context, query string, args []any) (map[string]finding, error) {
	found := map[string]finding{}
	err := t.Each(ctx, query, args, func(scan func(...any) error) error {
		var id string
		var repeated int
		var f finding
		err := scan(&id, &repeated, &f.hash)
		f.fresh = repeated == 0
		found[id] = f
		return err
	})
	return found, err
}

// clean deletes records that are too old, limit at most.
func (t tables) clean(ctx context.Context, limit int) (int64, error) {
	return t.Delete(ctx, sqltable.Deletion{Table: "records", Key: "consumer, message_id",
		Where: `consumer = ? and recorded_at < {start} - {span}`, Args: []any{t.Consumer, t.retention}, Order: "recorded_at", Limit: limit})
}
