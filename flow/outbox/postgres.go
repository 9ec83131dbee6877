package outbox

import (
	"context"

	"github.com/interlock-dev/interlock/internal/sqltable"
)

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
