package queue

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// On PostgreSQL each step is one statement. Groups are found by their primary key, one by one
// (lateral): for a list of keys, a plan without statistics compares each group with the list.
// Messages are deleted by an array of their ids: a join may scan the whole table. A limit in a
// subquery keeps the text of a statement, and its plan uses an index that has the order.

// addPostgres is add in one statement: it locks the keys before the first message has its number.
// No other transaction has the groups of messages without a key.
func (q tables) addPostgres(ctx context.Context, name string, rows []row, locks []int64) error {
	keyed, alone := announcements(rows)
	var lanes, classes, delays []int64
	var ids, keys, headers, uniques []string
	var payloads [][]byte
	for _, r := range rows {
		lanes, classes, delays = append(lanes, r.lane), append(classes, int64(r.Priority)), append(delays, r.Delay.Microseconds())
		ids, keys, headers, uniques = append(ids, r.ID), append(keys, r.Key), append(headers, r.headers), append(uniques, r.Unique)
		payloads = append(payloads, r.Payload)
	}
	arrived, of, conflict := `unnest(?::text::bigint[], ?::text::int[]) with ordinality as x (lane, class, n) where (select count(*) from l) >= 0`,
		[]any{name, sqltable.Numbers(keyed.lanes), sqltable.Numbers(keyed.classes)}, ``
	if slices.ContainsFunc(uniques, func(u string) bool { return u != "" }) { // some may be dropped
		arrived, of = `(select lane, class, row_number() over (order by id) as n from m where lane >= 0) x`, of[:1]
		conflict = ` on conflict do nothing returning id, lane, class`
	}
	_, err := q.Exec(ctx, `
with l as materialized (select pg_advisory_xact_lock(k.lane) from unnest(?::text::bigint[]) as k (lane)),
g as (insert into {groups} (queue, lane, state, class, ready_at, token, owner)
	select ?::text, x.lane, 0, x.class, (select {micros start}) + x.delay, 0, '' from unnest(?::text::bigint[], ?::text::bigint[], ?::text::bigint[]) as x (lane, class, delay)),
m as (insert into {messages} `+columns+`
	select ?::text, m.lane, m.id, m.k, m.headers, m.payload, nullif(m.u, ''), m.class, 0, '', (select {micros start}) + m.delay, (select {micros start})
	from unnest(?::text::bigint[], ?::text::text[], ?::text::text[], ?::text::text[], ?::text::bytea[], ?::text::text[], ?::text::int[], ?::text::bigint[])
		with ordinality as m (lane, id, k, headers, payload, u, class, delay, n)
	where (select count(*) from l) >= 0 order by m.n`+conflict+`)
`+arrive(`?::text`, arrived), append([]any{sqltable.Numbers(locks), name, sqltable.Numbers(alone.lanes), sqltable.Numbers(alone.classes), sqltable.Numbers(alone.delays),
		name, sqltable.Numbers(lanes), sqltable.Texts(ids), sqltable.Texts(keys), sqltable.Texts(headers),
		sqltable.Bytes(payloads), sqltable.Texts(uniques), sqltable.Numbers(classes), sqltable.Numbers(delays)}, of...)...)
	return err
}

// arrive inserts arrivals of the lanes of x, in the order of n. At most 100 lanes share a row, so
// that it needs no TOAST table.
func arrive(name, x string) string {
	return `insert into {arrivals} (queue, lanes, classes)
	select ` + name + `, array_agg(x.lane order by x.n), array_agg(x.class order by x.n) from ` + x + ` group by (x.n - 1) / 100 order by min(x.n)`
}

// admit makes groups ready for which messages have arrived. It waits for no lock of a group: the
// arrivals of locked groups stay. It marks leased groups, so that they are ready as soon as they
// are free: the statement that frees them may not see the new messages.
func (q tables) admit(ctx context.Context, name string, a *arrivals) error {
	if q.Maria() {
		return q.admitMaria(ctx, name)
	}
	var arrived, changed int64
	_, err := q.Row(ctx, `
with a as materialized (
	delete from {arrivals} where queue = ?::text and id = any (array(select id from {arrivals} where queue = ?::text and id = any (array(
		select id from (select id, sum(cardinality(lanes)) over (order by id) - cardinality(lanes) as before from {arrivals}
			where queue = ?::text and id < (select min(id) from {arrivals} where queue = ?::text) + ?::bigint) c
		where before < ?::bigint)) for update skip locked))
	returning queue, id, lanes, classes),
l as materialized (select distinct on (x.lane) a.queue, x.lane, x.class from a cross join lateral unnest(a.lanes, a.classes) with ordinality as x (lane, class, n)
	order by x.lane, a.id desc, x.n desc),
g as materialized (
	select l.*, o.state, o.ready_at, o.class as former
	from l cross join lateral (select * from {groups} o where o.queue = l.queue and o.lane = l.lane for update skip locked) o),
u as (update {groups} o set class = g.class, state = case when g.state & 1 = 1 then g.state | 4 else g.state end,
	ready_at = case when g.state = 0 then least(g.ready_at, {micros start}) else g.ready_at end
	from g where o.queue = g.queue and o.lane = g.lane and (g.class <> g.former or g.state & 5 = 1 or g.state = 0 and g.ready_at > {micros start}) returning o.lane),
n as (insert into {groups} (queue, lane, state, class, ready_at, token, owner)
	select queue, lane, 0, class, {micros start}, 0, '' from l where lane not in (select lane from g) and not exists (select from {groups} o where o.queue = l.queue and o.lane = l.lane)
	order by lane on conflict do nothing returning lane),
r as (`+arrive(`min(x.queue)`, `(select *, row_number() over () as n from l where lane not in (select lane from g) and lane not in (select lane from n)) x`)+`)
select (select coalesce(sum(cardinality(lanes)), 0) from a), (select count(*) from u) + (select count(*) from n)`, []any{name, name, name, name, a.most(), a.most()}, &arrived, &changed)
	a.learn(arrived, changed)
	return err
}

// lease leases groups that are ready, by priority and waiting time, each under a token above all its
// former ones. It skips locked groups.
func (q tables) lease(ctx context.Context, name, owner string, most int, lease time.Duration) ([]found, error) {
	if q.Maria() {
		return q.leaseMaria(ctx, name, owner, most, lease)
	}
	ready := func(class Priority) string {
		return `(select queue, lane, state, ready_at, ` + due(class) + ` as due from {groups}
	where queue = ?::text and class = ` + strconv.Itoa(int(class)) + ` and ready_at <= {micros start} order by ready_at limit (select ?::bigint) for update skip locked)`
	}
	all, err := sqltable.List(ctx, q.Tables, `
with high as materialized `+ready(High)+`, normal as materialized `+ready(Normal)+`, low as materialized `+ready(Low)+`,
c as materialized (select * from (select * from high union all select * from normal union all select * from low) c order by due limit (select ?::bigint))
update {groups} g set state = c.state | 1, token = greatest(g.token + 1, {micros start} - `+strconv.Itoa(interlock.EpochUnixMicro)+`), owner = ?, ready_at = {micros start} + ?::bigint
from c where g.queue = c.queue and g.lane = c.lane
returning g.lane, c.state, g.token, c.due, c.ready_at`, []any{name, most, name, most, name, most, most, owner, lease.Microseconds()}, func(f *found) []any { return []any{&f.lane, &f.state, &f.token, &f.due, &f.since} })
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.due, b.due) })
	return all, err
}

// due is the SQL of the time that ranks groups of a class.
func due(class Priority) string {
	return `ready_at - ` + strconv.FormatInt(int64(class)*leasequeue.Aging.Microseconds(), 10)
}

// acknowledge is Settle for messages that are all Ack, in one statement. It locks the groups in the
// order of their lanes, deletes the messages and frees the groups. Remaining messages of a group
// come after the last deleted one; a message replayed before it has marked the group (see admit).
func (q tables) acknowledge(ctx context.Context, name string, settled []leasequeue.Settled) (lost []leasequeue.Held, err error) {
	settled = slices.SortedFunc(slices.Values(settled), func(a, b leasequeue.Settled) int { return cmp.Compare(a.ID, b.ID) })
	var lanes, tokens, through, places, of []int64
	for _, s := range settled {
		last := int64(0)
		for _, o := range s.Outcomes {
			places, of, last = append(places, o.Place), append(of, s.ID), max(last, o.Place)
		}
		if !s.Finished {
			last = 0
		}
		lanes, tokens, through = append(lanes, s.ID), append(tokens, s.Token.Counter()), append(through, last)
	}
	done, err := sqltable.Column[int64](ctx, q.Tables, `
with x as materialized (select * from unnest(?::text::bigint[], ?::text::bigint[], ?::text::bigint[]) as x (lane, token, through)),
l as materialized (select x.* from x cross join lateral (select from {groups} o where o.queue = ?::text and o.lane = x.lane and o.token = x.token for update) o),
f as (update {groups} o set state = case when x.through > 0 then 0 else o.state end, ready_at = case when x.through = 0 then o.ready_at when o.state & 4 = 4 then {micros start} else coalesce((
		select greatest(m.not_before, {micros start}) from {messages} m where m.queue = o.queue and m.lane = o.lane and m.id > x.through order by m.id limit 1), `+never+`) end
	from l x where o.queue = ?::text and o.lane = x.lane and o.lane >= 0 returning o.lane),
k as (delete from {groups} where queue = ?::text and lane = any (array(select lane from l where lane < 0)) returning lane),
d as (delete from {messages} where id = any (array(select p.id from unnest(?::text::bigint[], ?::text::bigint[]) as p (id, lane)
	where p.lane in (select lane from f) or p.lane in (select lane from k))))
select lane from f union all select lane from k order by lane`, sqltable.Numbers(lanes), sqltable.Numbers(tokens), sqltable.Numbers(through), name, name, name, sqltable.Numbers(places), sqltable.Numbers(of))
	for _, s := range settled {
		if _, ok := slices.BinarySearch(done, s.ID); !ok {
			lost = append(lost, s.Held)
		}
	}
	return lost, err
}

// finishPostgres is finish in one statement, which locks the groups in the order of their lanes.
func (q tables) finishPostgres(ctx context.Context, name string, all []leasequeue.Place) (removed int, err error) {
	var lanes, tokens, places []int64
	for _, p := range all {
		lanes, tokens, places = append(lanes, p.ID), append(tokens, p.Token.Counter()), append(places, p.Place)
	}
	_, err = q.Row(ctx, `
with x as materialized (select * from unnest(?::text::bigint[], ?::text::bigint[], ?::text::bigint[]) as x (lane, token, id)),
g as materialized (select x.id from x cross join lateral (
	select o.lane from {groups} o where o.queue = ?::text and o.lane = x.lane and o.token = x.token for update) o),
d as (delete from {messages} where id = any (array(select id from g)) returning id)
select count(*) from d`, []any{sqltable.Numbers(lanes), sqltable.Numbers(tokens), sqltable.Numbers(places), name}, &removed)
	return removed, err
}

// acked reports whether all messages of all leases are Ack, including those settled before.
func acked(settled []leasequeue.Settled) bool {
	for _, s := range settled {
		if s.Kept || len(s.Outcomes) == 0 || slices.ContainsFunc(s.Outcomes, func(o driver.Settlement) bool { return o.Outcome != driver.Ack }) {
			return false
		}
	}
	return true
}
