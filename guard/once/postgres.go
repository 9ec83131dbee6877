package once

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
)

// postgres keeps records in PostgreSQL, under a unique index.
//
// Several ids come as one parameter, a text in JSON, so that the statement is the
// same whatever their number, and any client can send it.
type postgres struct{}

// createLock: CREATE … IF NOT EXISTS fails if another session creates it just then.
const createLock = `select pg_advisory_xact_lock(hashtextextended('interlock once: create', 0))`

const createSequences = `
create table if not exists %s (
	consumer text collate "C" not null,
	message_key text collate "C" not null,
	epoch bigint not null,
	seq bigint not null,
	payload_hash bytea,
	moved_at timestamptz not null,
	primary key (consumer, message_key))`

func (postgres) create(ctx context.Context, db driver.SQL, t tables) error {
	return run(ctx, db, createLock,
		`create table if not exists `+t.records+` (
			consumer text collate "C" not null,
			message_id text collate "C" not null,
			payload_hash bytea not null,
			recorded_at timestamptz not null,
			primary key (consumer, message_id))`,
		`create index if not exists `+t.age+` on `+t.records+` (consumer, recorded_at)`,
		fmt.Sprintf(createSequences, t.sequences))
}

// recordPostgres gives back the ids that are new. On a conflict with a row of a
// transaction that has not ended it waits for that end. If it then finds a row
// that its snapshot does not show, it goes on at READ COMMITTED, and fails at the
// higher levels.
const recordPostgres = `
insert into %s (consumer, message_id, payload_hash, recorded_at)
select $1::text, e.id, decode(e.hash, 'hex'), clock_timestamp()
from json_to_recordset($2::json) as e(id text, hash text)
order by e.id collate "C"
on conflict (consumer, message_id) do nothing
returning message_id`

func (p postgres) record(ctx context.Context, db driver.SQL, t tables, entries []entry) (map[string]finding, error) {
	return recordBy(ctx, db, t, entries, fmt.Sprintf(recordPostgres, t.records), p.look)
}

// recordBy inserts by a query, and looks for the ids that were there: by a second
// statement, since the first one's snapshot may be from before what it waited for.
func recordBy(ctx context.Context, db driver.SQL, t tables, entries []entry, query string,
	look func(context.Context, driver.SQL, tables, []string) (map[string]finding, error)) (map[string]finding, error) {
	fresh := map[string]bool{}
	err := db.Query(ctx, query, []any{t.consumer, inJSON(entries)}, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		fresh[id] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	found := map[string]finding{}
	var old []string
	for _, e := range entries {
		if !fresh[e.id] {
			old = append(old, e.id)
		}
	}
	if len(old) > 0 {
		if found, err = look(ctx, db, t, old); err != nil {
			return nil, err
		}
	}
	for id := range fresh {
		found[id] = finding{fresh: true}
	}
	return found, nil
}

func inJSON(entries []entry) string {
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

// isOneOf compares with the ids of a parameter.
const isOneOf = `consumer = $1::text and message_id = any(array(select json_array_elements_text($2::json) collate "C"))`

func (postgres) look(ctx context.Context, db driver.SQL, t tables, ids []string) (map[string]finding, error) {
	return lookBy(ctx, db, `select message_id, payload_hash from `+t.records+` where `+isOneOf, t, ids)
}

func lookBy(ctx context.Context, db driver.SQL, query string, t tables, ids []string) (map[string]finding, error) {
	text, _ := json.Marshal(ids)
	found := map[string]finding{}
	err := db.Query(ctx, query, []any{t.consumer, string(text)}, func(scan func(...any) error) error {
		var id string
		var f finding
		err := scan(&id, &f.hash)
		found[id] = f
		return err
	})
	return found, err
}

// clean makes an array of what it deletes, because that is made once: a plan may run
// a subquery for each row, and its limit is then none.
func (postgres) clean(ctx context.Context, db driver.SQL, t tables, limit int) (int64, error) {
	return db.Exec(ctx, fmt.Sprintf(`
delete from %[1]s where consumer = $1::text and message_id = any(array(
	select message_id from %[1]s
	where consumer = $1::text and recorded_at < clock_timestamp() - $2::bigint * interval '1 microsecond'
	order by recorded_at limit $3::bigint for update skip locked))`, t.records), t.consumer, t.retention, int64(limit))
}
