package journal

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Claim moves due times; see driver.Journal. It skips transactions that another append
// or claim has locked.
func (t *Table[T]) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) (heads []driver.Head, err error) {
	name := driver.ShardName(shard)
	if until.IsZero() {
		return nil, failure.Bug("claim", name, "the new due time is missing")
	}
	err = t.change(ctx, "claim", name, func(n tables) error {
		seen, err := n.marks.Share(ctx, n.SQL(), name)
		if err == nil {
			err = owned("claim", shard, seen[name], epoch)
		}
		if err != nil {
			return err
		}
		heads, err = n.query(ctx, `where shard = ? and due <= ? order by due, id limit ? for update skip locked`,
			[]any{int64(shard), by.UnixMilli(), int64(limit)})
		if err != nil || len(heads) == 0 {
			return err
		}
		return n.putOff(ctx, heads, until)
	})
	if err != nil {
		return nil, err
	}
	return heads, nil
}

// putOff moves the due times of heads, in the rows and in the slice.
func (n tables) putOff(ctx context.Context, heads []driver.Head, until time.Time) error {
	v := values{}
	v.args = append(v.args, until.UnixMilli())
	for i := range heads {
		v.row("", heads[i].Transaction)
		heads[i].Due, heads[i].Claimed = time.UnixMilli(until.UnixMilli()).UTC(), true
	}
	_, err := n.Exec(ctx, `update {heads} set claimed = 1, due = ? where id in (`+v.text.String()+`)`, v.args...)
	return err
}

// Forget removes transactions that ended before a time; see driver.Journal.
func (t *Table[T]) Forget(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	err = t.change(ctx, "forget", "", func(n tables) error {
		heads, err := n.query(ctx, `where ended < ? order by ended limit ? for update skip locked`,
			[]any{before.UnixMicro(), int64(limit)})
		if err != nil {
			return err
		}
		v := values{}
		for _, h := range heads {
			v.row("", h.Transaction)
		}
		for _, table := range []string{`{records}`, `{payloads}`, `{heads}`} {
			if v.rows == 0 {
				break
			}
			if _, err := n.Exec(ctx, `delete from `+table+` where id in (`+v.text.String()+`)`, v.args...); err != nil {
				return err
			}
		}
		forgotten = len(heads)
		return nil
	})
	if err != nil {
		return 0, err
	}
	for more := true; more && err == nil; {
		err = t.change(ctx, "forget payloads", "", func(n tables) (err error) {
			more, err = n.forgetPayloads(ctx, before.UnixMicro())
			return err
		})
	}
	return forgotten, err
}

// settled replaces the time of a payload whose transaction exists: the payload is removed with the
// transaction, and Forget skips it.
const settled = 1 << 62

// forgetPayloads removes payloads without a transaction from the next page of those stored before a
// time, and marks the others as settled.
func (n tables) forgetPayloads(ctx context.Context, before int64) (more bool, err error) {
	const page = 200
	ids, err := sqltable.Column[[]byte](ctx, n.Tables, `select id from {payloads} where kept < ? order by kept limit `+strconv.Itoa(page)+` for update skip locked`, before)
	if err != nil || len(ids) == 0 {
		return false, err
	}
	v := values{args: []any{before}}
	for _, id := range ids {
		v.row("", string(id))
	}
	chosen := ` where kept < ? and id in (` + v.text.String() + `)`
	_, err = n.Exec(ctx, n.nowait()+`delete from {payloads}`+chosen+` and not exists (select 1 from {heads} where {heads}.id = {payloads}.id)`, v.args...)
	if err == nil {
		_, err = n.Exec(ctx, n.nowait()+`update {payloads} set kept = `+strconv.Itoa(settled)+chosen, v.args...)
	}
	return v.rows == page, err
}

// Unscheduled counts transactions that are neither due nor ended; see driver.Journal.
// A constraint of the table keeps it at 0.
func (t *Table[T]) Unscheduled(ctx context.Context) (count int, err error) {
	err = t.read(ctx, "count unscheduled", "", func(n tables) error {
		_, err := n.Row(ctx, `select count(*) from {heads} where due is null and ended is null`, nil, &count)
		return err
	})
	return count, err
}

// PutPayload stores a payload; see driver.Journal. It does not wait for locks: if another
// transaction is storing the payload, the error is [interlock.ErrHeld].
func (t *Table[T]) PutPayload(ctx context.Context, id string, sum, payload []byte) error {
	if err := driver.CheckPayload(id, sum, payload); err != nil {
		return err
	}
	return t.change(ctx, "keep payload", id, func(n tables) error {
		return n.keep(ctx, id, sum, payload)
	})
}

// keep stores a payload, or refreshes the time of a stored one.
func (n tables) keep(ctx context.Context, id string, sum, payload []byte) error {
	query := `insert into {payloads} (id, sum, data, kept)
		select v.id, ?::varchar, ?::bytea, ` + now + ` from (select ?::varchar as id) v
		where ` + n.lockID() + ` on conflict (id, sum) do update set kept = excluded.kept`
	args := []any{hex.EncodeToString(sum), payload, id}
	if n.Maria() {
		query = n.nowait() + `insert into {payloads} (sum, data, id, kept) values (?, ?, ?, ` + now + `)
			on duplicate key update kept = greatest(kept + 1, values(kept))`
	}
	rows, err := n.Exec(ctx, query, args...)
	if err == nil && rows == 0 {
		return inUse("keep payload", id)
	}
	return err
}

// nowait returns the prefix of a statement on MariaDB that must not wait for a row.
func (n tables) nowait() string {
	if n.lent || !n.Maria() {
		return ``
	}
	return `set statement innodb_lock_wait_timeout = 0 for `
}

// Payload returns a stored payload; see driver.Journal.
func (t *Table[T]) Payload(ctx context.Context, id string, sum []byte) (payload []byte, err error) {
	const op = "read payload"
	if err := driver.CheckTransaction(op, id); err != nil {
		return nil, err
	}
	err = t.read(ctx, op, id, func(n tables) (err error) {
		payload, err = n.payload(ctx, id, sum, "")
		return err
	})
	return payload, err
}

func (n tables) payload(ctx context.Context, id string, sum []byte, locking string) (payload []byte, err error) {
	found, err := n.Row(ctx, `select data from {payloads} where id = ? and sum = ?`+locking, []any{id, hex.EncodeToString(sum)}, &payload)
	if found && payload == nil {
		payload = []byte{}
	}
	return payload, err
}
