package once

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
	"github.com/interlock-dev/interlock/observe"
)

// rotated keeps records in generations, on PostgreSQL.
//
// There is one partition, that of the present generation, and a table of the one
// before, which nothing is written to. A record is written unless the one before
// has it; the generation that it is written to is read in the same statement. What
// makes this right is that the two cannot be at odds: a transaction that has written keeps
// Rotate waiting until its transaction ends, so that the table before is complete
// when the next generation shows; and one that still sees the old number afterwards
// finds no partition for it and fails, Retryable. See docs/adr/022-once.md.
type rotated struct{ postgres }

const columns = `
	generation bigint not null,
	consumer text collate "C" not null,
	message_id text collate "C" not null,
	payload_hash bytea not null,
	recorded_at timestamptz not null,
	primary key (consumer, message_id, generation)`

func (rotated) create(ctx context.Context, db driver.SQL, t tables) error {
	err := run(ctx, db, createLock,
		`create table if not exists `+t.records+` (`+columns+`) partition by list (generation)`,
		`create table if not exists `+t.previous+` (`+columns+`)`,
		`create table if not exists `+t.generation+` (
			one boolean primary key check (one),
			generation bigint not null,
			since timestamptz not null,
			retention interval not null)`,
		fmt.Sprintf(createSequences, t.sequences))
	if err != nil {
		return err
	}
	var generation int64
	_, err = row(ctx, db, `
insert into `+t.generation+` as g (one, generation, since, retention)
values (true, 1, clock_timestamp(), $1::bigint * interval '1 microsecond')
on conflict (one) do update set retention = greatest(g.retention, excluded.retention)
returning generation`, []any{t.retention}, &generation)
	if err != nil {
		return err
	}
	return open(ctx, db, t, generation)
}

// open makes the partition of a generation.
func open(ctx context.Context, db driver.SQL, t tables, generation int64) error {
	part, err := partition(t, generation)
	if err != nil {
		return err
	}
	return run(ctx, db, fmt.Sprintf(`create table if not exists %s partition of %s for values in (%d)`, part, t.records, generation))
}

func partition(t tables, generation int64) (string, error) {
	return sqltext.Identifier(driver.Postgres, t.name, fmt.Sprintf("_g%d", generation))
}

const recordRotated = `
insert into %[1]s (generation, consumer, message_id, payload_hash, recorded_at)
select g.generation, $1::text, e.id, decode(e.hash, 'hex'), clock_timestamp()
from %[2]s g, json_to_recordset($2::json) as e(id text, hash text)
where not exists (select from %[3]s p where p.consumer = $1::text and p.message_id = e.id collate "C")
order by e.id collate "C"
on conflict (consumer, message_id, generation) do nothing
returning message_id`

func (r rotated) record(ctx context.Context, db driver.SQL, t tables, entries []entry) (map[string]finding, error) {
	found, err := recordBy(ctx, db, t, entries, fmt.Sprintf(recordRotated, t.records, t.generation, t.previous), r.look)
	if stateOf(err) == noPartition {
		err = &interlock.Error{Op: "receive", Driver: "postgres", Name: t.consumer, Kind: interlock.Retryable,
			Err: fmt.Errorf("the inbox was rotated after the transaction's snapshot was taken: %w", err)}
	}
	return found, err
}

// noPartition is the SQLSTATE check_violation.
const noPartition = "23514"

func (rotated) look(ctx context.Context, db driver.SQL, t tables, ids []string) (map[string]finding, error) {
	query := `select message_id, payload_hash from %s where ` + isOneOf
	return lookBy(ctx, db, fmt.Sprintf(query+` union all `+query, t.records, t.previous), t, ids)
}

// rotatePatience bounds in ms how long Rotate waits for transactions under way, and
// so how long it keeps others from beginning to write.
const rotatePatience = "2000"

// Rotate begins a new generation of a rotated inbox if the present one is as old
// as the retention, and drops what stands in the one before the present. It returns
// whether it did. A record is so kept for one retention at least, and for two at
// most if Rotate is called often enough: once an hour, say, by any process. If it
// is not called nothing is lost, and the table grows.
//
// It waits up to two seconds, or the session's lock_timeout if that is less, for
// transactions that have recorded messages, during which no other can; if that is not
// enough it fails with [interlock.ErrHeld], Retryable. Call it in a transaction of its
// own. A clock that is set back delays
// it; one that is set forward makes it come early.
func (in Inbox) Rotate(ctx context.Context, db driver.SQL) (bool, error) {
	const op = "rotate inbox"
	_, t, err := in.open(op, db)
	if err != nil {
		return false, err
	}
	if !in.Rotated {
		return false, failure.Bug(op, t.name, "it is not rotated: use Clean")
	}
	next, err := rotate(ctx, db, t)
	err = about(op, t.name, err)
	if err != nil || next > 0 {
		tellCleaned(in.Hooks, observe.OnceCleaned{Consumer: in.Consumer, Generation: next, Err: err})
	}
	return next > 0 && err == nil, err
}

// rotate gives the new generation, or 0 if it was not time for it.
func rotate(ctx context.Context, db driver.SQL, t tables) (next int64, err error) {
	// Nobody waits for longer than the session allows already.
	err = run(ctx, db, `select set_config('lock_timeout', least(nullif(setting::int, 0), `+rotatePatience+`)::text, true)
		from pg_settings where name = 'lock_timeout'`)
	if err != nil {
		return 0, err
	}
	var old int64
	due, err := row(ctx, db, `select generation from `+t.generation+` where since + retention <= clock_timestamp() for update`, nil, &old)
	if err != nil || !due {
		return 0, err
	}
	part, err := partition(t, old)
	if err != nil {
		return 0, err
	}
	previous, err := sqltext.Identifier(driver.Postgres, unqualified(t.name), "_previous")
	if err != nil {
		return 0, err
	}
	// The inbox is locked before the table of the previous generation, as by those
	// who write.
	err = run(ctx, db,
		`lock table `+t.records+` in access exclusive mode`,
		`drop table `+t.previous,
		`alter table `+t.records+` detach partition `+part,
		`alter table `+part+` rename to `+previous)
	if err != nil {
		return 0, err
	}
	if err := open(ctx, db, t, old+1); err != nil {
		return 0, err
	}
	return old + 1, run(ctx, db, `update `+t.generation+` set generation = generation + 1, since = clock_timestamp()`)
}
