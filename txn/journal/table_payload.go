package journal

import (
	"context"
	"encoding/hex"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

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

// oid returns the oid of the table of heads, as SQL of PostgreSQL.
func (n tables) oid() string {
	return `'` + strings.ReplaceAll(n.Quoted("heads"), `'`, `''`) + `'::regclass::oid::bigint`
}

// lockID returns the condition, on PostgreSQL, that no other transaction is beginning the
// transaction v.id or storing a payload of it. Only a lent one waits.
func (n tables) lockID() string {
	if n.lent {
		return `pg_advisory_xact_lock(hashtextextended(v.id, ` + n.oid() + `)) is not null`
	}
	return `pg_try_advisory_xact_lock(hashtextextended(v.id, ` + n.oid() + `))`
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
