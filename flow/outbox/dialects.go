package outbox

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// On MariaDB texts are stored as bytes, without a collation. The code does not use the number of
// affected rows, which depends on the client.

// stripes is the number of rows to lock, which are never deleted. Two keys share one with a
// probability of 1/262144; then they wait for each other.
const stripes = 1 << 18

// insertMaria locks first, in a statement of its own. It locks an existing row by an update to the
// same value, which InnoDB does not write.
func (s store) insertMaria(ctx context.Context, a add) error {
	if len(a.lanes) > 0 {
		locked := make([]int64, len(a.lanes))
		for i, lane := range a.lanes {
			locked[i] = spread(lane) % stripes
		}
		slices.Sort(locked)
		locked = slices.Compact(locked)
		query := `insert into {stripes} (stripe) values (` + strings.ReplaceAll(list(locked), ",", "),(") +
			`) on duplicate key update stripe = values(stripe)`
		if _, err := s.Exec(ctx, query); err != nil {
			return err
		}
	}
	// The lock prevents a change of the number until the transaction ends.
	which := ``
	if s.table.Slices != 0 {
		which = ` and abs(slices) = ` + strconv.Itoa(s.table.Slices)
	}
	layout := `(select abs(slices) from {layout} where one = 1` + which + ` {share})`
	row := `(?, coalesce(mod(?, ` + layout + `), -1), ?, ?, {?}, {?}, {?}, ?, {micros start})`
	args := make([]any, 0, 8*len(a.messages))
	for _, m := range a.messages {
		args = append(args, m.ID, spread(m.lane), m.lane, m.Topic, m.Key, m.headers, m.Payload, a.notBefore)
	}
	query := `insert into {messages} (message_id, slice, lane, topic, msg_key, headers, payload, not_before, added) values ` +
		strings.TrimSuffix(strings.Repeat(row+",", len(a.messages)), ",")
	return s.refused(ctx, s.exec(ctx, query, args...))
}

// refused finds out which constraint rejected an insert. On MariaDB the transaction can continue.
func (s store) refused(ctx context.Context, err error) error {
	if failure.SQLState(err) != "23000" {
		return err
	}
	if _, err := s.layout(ctx, ""); err != nil {
		return err
	}
	return &DuplicateError{Table: s.table.name()}
}

// without returns the condition that a column is none of ids. On PostgreSQL its text is the same
// for any ids, and each row is looked up in a hash table.
func (s store) without(column string, ids []int64) (condition string, args []any) {
	switch {
	case !s.Maria():
		return ` and ` + column + ` not in (select unnest(?::text::bigint[]))`, []any{sqltable.Numbers(ids)}
	case len(ids) == 0:
		return ``, nil
	}
	return ` and ` + column + ` not in (` + list(ids) + `)`, nil
}

// among joins a table, as m, with a list of its primary keys, one by one and in order. For an IN list
// InnoDB may scan a small table, and would wait for every locked row.
func among(table, key, ids string) string {
	return `json_table(` + ids + `, '$[*]' columns (id bigint path '$')) d straight_join ` + table +
		` m force index (primary) on m.` + key + ` = d.id`
}

// insertStatement locks the lanes, whose numbers are sorted, in order. An id is assigned when a row of
// the join is stored, and the join has no row before all locks are held.
const insertStatement = `
with locked as materialized (
	select pg_advisory_xact_lock(k.lane) from unnest($1::text::bigint[]) as k (lane))
insert into {messages} (message_id, slice, lane, topic, msg_key, headers, payload, not_before, added)
select m.id, mod((m.lane >> 1) & 9223372036854775807, y.n), m.lane, m.topic, m.msg_key, m.headers,
	substring($8::bytea from m.first for m.bytes), $9::bigint, {micros start}
from (select count(*) from locked) as l,
	(select abs(slices) as n from {layout} where one = 1 and ($10::int = 0 or abs(slices) = $10::int)) as y,
	unnest($2::text::text[], $3::text::bigint[], $4::text::text[], $5::text::text[], $6::text::text[], $7::text::int[], $11::text::int[])
		with ordinality as m (id, lane, topic, msg_key, headers, first, bytes, n)
order by m.n
on conflict (message_id) do nothing`

func (s store) insertPostgres(ctx context.Context, a add) error {
	var ids, topics, keys, headers []string
	var lanes, first, length []int64
	var payload []byte
	for _, m := range a.messages {
		ids, topics, keys, headers = append(ids, m.ID), append(topics, m.Topic), append(keys, m.Key), append(headers, m.headers)
		lanes, first, length = append(lanes, m.lane), append(first, int64(len(payload)+1)), append(length, int64(len(m.Payload)))
		payload = append(payload, m.Payload...)
	}
	if payload == nil {
		payload = []byte{}
	}
	inserted, err := s.Exec(ctx, insertStatement, sqltable.Numbers(a.lanes), sqltable.Texts(ids), sqltable.Numbers(lanes), sqltable.Texts(topics),
		sqltable.Texts(keys), sqltable.Texts(headers), sqltable.Numbers(first), payload, a.notBefore, s.table.Slices, sqltable.Numbers(length))
	if err != nil || inserted == int64(len(a.messages)) {
		return err
	}
	if _, err := s.layout(ctx, ""); err != nil {
		return err
	}
	return &DuplicateError{Table: s.table.name()}
}
