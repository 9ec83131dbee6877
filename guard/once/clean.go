package once

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/observe"
)

// Clean deletes records of this consumer that are older than its Retention by the database's
// clock, limit at most, the oldest first; 0 means 1000. It returns the number of deleted
// records: call it again, in another transaction, while that is the limit. If the clock is set
// back, records live longer. If it is set forward by more than the retention, all records are
// old.
//
// It keeps the positions of keys in their sequences forever. For a rotated inbox use
// [Inbox.Rotate]; Clean is a Bug there.
func (in Inbox) Clean(ctx context.Context, db driver.SQL, limit int) (int64, error) {
	t, err := in.open("clean inbox", "", db)
	switch {
	case err != nil:
		return 0, err
	case in.Rotated:
		return 0, t.Bug("it is rotated: use Rotate")
	case limit < 0:
		return 0, t.Bug("a limit of %d", limit)
	case limit == 0:
		limit = 1000
	}
	n, err := t.clean(ctx, limit)
	reportCleaned(in.Hooks, observe.OnceCleaned{Consumer: in.Consumer, Rows: n, Err: err})
	return n, err
}

// Sweep is [Inbox.Clean], or [Inbox.Rotate] for a rotated inbox: there it drops an expired
// generation and returns 0. It is for package guard/sweep.
func (in Inbox) Sweep(ctx context.Context, db driver.SQL, limit int) (int, error) {
	if in.Rotated {
		_, err := in.Rotate(ctx, db)
		return 0, err
	}
	n, err := in.Clean(ctx, db, limit)
	return int(n), err
}

// A rotated inbox keeps records in generations, on PostgreSQL.
//
// There is one partition for the current generation, and a read-only table for the previous
// one. A record is written unless the previous generation has it; the same statement reads the
// number of the current generation. The two always match. A transaction that has written keeps
// Rotate waiting until it ends, so the previous table is complete when the next generation
// becomes visible. A transaction that still sees the old number afterwards finds no partition
// and fails as Retryable. See docs/adr/022-once.md.
const recordRotated = `
insert into {records} (generation, consumer, message_id, payload_hash, recorded_at)
select g.generation, ?::text, e.id, decode(e.hash, 'hex'), {now}
from {generation} g, json_to_recordset(?::json) as e(id text, hash text)
where not exists (select from {previous} p where p.consumer = ?::text and p.message_id = e.id collate "C")
order by e.id collate "C"
on conflict (consumer, message_id, generation) do nothing
returning message_id, 0, payload_hash`

const columns = `
	generation bigint not null,
	consumer text collate "C" not null,
	message_id text collate "C" not null,
	payload_hash bytea not null,
	recorded_at timestamptz not null,
	primary key (consumer, message_id, generation)`

func (t tables) createRotated(ctx context.Context) error {
	err := t.Tables.Create(ctx,
		`create table if not exists {records} (`+columns+`) partition by list (generation)`,
		`create table if not exists {previous} (`+columns+`)`,
		`create table if not exists {generation} (
			one boolean primary key check (one),
			generation bigint not null,
			since timestamptz not null,
			retention interval not null)`,
		createSequences)
	if err != nil {
		return err
	}
	var generation int64
	_, err = t.Row(ctx, `
insert into {generation} as g (one, generation, since, retention)
values (true, 1, {now}, {span})
on conflict (one) do update set retention = greatest(g.retention, excluded.retention)
returning generation`, []any{t.retention}, &generation)
	if err == nil {
		err = t.definePartition("partition", generation)
	}
	if err == nil {
		_, err = t.Exec(ctx, createPartition(generation))
	}
	return err
}

// createPartition creates the {partition} of a generation.
func createPartition(generation int64) string {
	return fmt.Sprintf(`create table if not exists {partition} partition of {records} for values in (%d)`, generation)
}

// definePartition defines word as the partition of a generation.
func (t tables) definePartition(word string, generation int64) error {
	name, err := sqltable.Identifier(driver.Postgres, t.Name, fmt.Sprintf("_g%d", generation))
	t.Define(word, name)
	return err
}

// rotatedMeanwhile makes the error of a missing partition Retryable.
func rotatedMeanwhile(err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || failure.SQLState(e) != noPartition {
		return err
	}
	again := *e
	again.Kind = interlock.Retryable
	again.Err = fmt.Errorf("the inbox was rotated after the transaction's snapshot was taken: %w", e.Err)
	return &again
}

// noPartition is the SQLSTATE check_violation.
const noPartition = "23514"

// rotatePatience bounds in ms how long Rotate waits for transactions under way, and
// so how long it keeps others from beginning to write.
const rotatePatience = "2000"

// Rotate begins a new generation of a rotated inbox if the current one is as old as the
// retention. It then drops the generation before the current one. It reports whether it did. So
// a record is kept for at least one retention. It is kept for at most two if processes call
// Rotate often enough, such as once an hour. Without calls nothing is lost, and the table
// grows.
//
// It blocks up to two seconds, or the session's lock_timeout if that is less, for transactions
// that have recorded messages. No other transaction can record meanwhile. If that is not
// enough, it returns [interlock.ErrHeld], Retryable. Call it in its own transaction. If the
// clock is set back, Rotate is late; if it is set forward, Rotate is early.
func (in Inbox) Rotate(ctx context.Context, db driver.SQL) (bool, error) {
	t, err := in.open("rotate inbox", "", db)
	if err != nil {
		return false, err
	}
	if !in.Rotated {
		return false, t.Bug("it is not rotated: use Clean")
	}
	next, err := t.rotate(ctx)
	if err != nil || next > 0 {
		reportCleaned(in.Hooks, observe.OnceCleaned{Consumer: in.Consumer, Generation: next, Err: err})
	}
	return next > 0 && err == nil, err
}

// rotate returns the new generation, or 0 if it was not time for it.
func (t tables) rotate(ctx context.Context) (next int64, err error) {
	// The wait is not longer than the session's own bound.
	_, err = t.Exec(ctx, `select set_config('lock_timeout', least(nullif(setting::int, 0), `+rotatePatience+`)::text, true)
		from pg_settings where name = 'lock_timeout'`)
	if err != nil {
		return 0, err
	}
	var old int64
	due, err := t.Row(ctx, `select generation from {generation} where since + retention <= {now} for update`, nil, &old)
	if err != nil || !due {
		return 0, err
	}
	if err := errors.Join(t.definePartition("old", old), t.definePartition("partition", old+1)); err != nil {
		return 0, err
	}
	// The inbox is locked before the table of the previous generation, in the order of writers.
	for _, statement := range []string{
		`lock table {records} in access exclusive mode`,
		`drop table {previous}`,
		`alter table {records} detach partition {old}`,
		`alter table {old} rename to {previous_name}`,
		createPartition(old + 1),
		`update {generation} set generation = generation + 1, since = {now}`,
	} {
		if _, err := t.Exec(ctx, statement); err != nil {
			return 0, err
		}
	}
	return old + 1, nil
}
