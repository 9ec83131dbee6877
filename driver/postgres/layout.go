package postgres

import "strings"

// clockFloor is the server's clock in microseconds since 2020.
var clockFloor = `(floor(extract(epoch from clock_timestamp()) * 1000000)::bigint - ` + epochMicros + `)`

// The tables of a namespace. Those of holders, waiters, sessions and watchers are
// unlogged: they mean nothing without the sessions that a crash ends. Owners and
// names compare by bytes. seen is when the session was last heard in a way that
// renews its lease. No token is granted above the reserved counter, which is durable.
const schema = `
create unlogged table if not exists {ns}_holder (
	key bigint primary key,
	owner text collate "C" not null,
	name text collate "C" not null,
	session int not null,
	counter bigint not null,
	ttl_ms bigint not null,
	since timestamptz not null default clock_timestamp()
);
create unlogged table if not exists {ns}_waiter (
	key bigint not null,
	owner text collate "C" not null,
	name text collate "C" not null,
	session int not null,
	since timestamptz not null default clock_timestamp(),
	place bigint generated always as identity,
	primary key (key, owner)
);
create unlogged table if not exists {ns}_session (
	session int primary key,
	seen timestamptz not null default clock_timestamp(),
	ttl_ms bigint not null
);
create unlogged table if not exists {ns}_watcher (session int primary key);
create table if not exists {ns}_break (
	id bigint generated always as identity primary key,
	name text collate "C" not null,
	owner text not null,
	reason text not null,
	who text not null,
	counter bigint not null,
	at timestamptz not null default clock_timestamp()
);
create index if not exists {ns}_break_name on {ns}_break (name, id);
create sequence if not exists {ns}_token as bigint cache 1 no cycle;
create table if not exists {ns}_reserved (
	id int primary key check (id = 1),
	counter bigint not null
);
`

// Prepared statements of a session, by name.
const (
	stTry      = "interlock_try"
	stTake     = "interlock_take"
	stReserve  = "interlock_reserve"
	stReserved = "interlock_reserved"
	stUndo     = "interlock_undo"
	stGive     = "interlock_give"
	stRegister = "interlock_register"
	stLeave    = "interlock_leave"
	stUnlock   = "interlock_unlock"
	stPass     = "interlock_pass"
	stPing     = "interlock_ping"
	stSweep    = "interlock_sweep"
	stShow     = "interlock_show"
	stList     = "interlock_list"
	stBreak    = "interlock_break"
	stForeign  = "interlock_foreign"
	stEnd      = "interlock_end"
	stBreaks   = "interlock_breaks"
	stAttend   = "interlock_attend"
	stForget   = "interlock_forget"
	stDepart   = "interlock_depart"
	stListen   = "interlock_listen"
	stUnlisten = "interlock_unlisten"
	stHeld     = "interlock_held"
)

// hint tells watchers of name, which is a SQL expression.
func hint(name string) string {
	return `case when exists (select from {ns}_watcher) then pg_notify('{ns}_watch', ` + name + `) is null end`
}

// live is the condition that the session of a row of c is there, by the locks
// that are held: every session locks its own id.
const live = `exists (select from pg_locks l where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
	and l.database = (select oid from pg_database where datname = current_database())
	and l.classid = (({class})::bigint & 4294967295)::oid and l.objid = (c.session::bigint & 4294967295)::oid {and})`

// holds narrows live down to sessions that also hold the lock of the row.
const holds = `and exists (select from pg_locks h where h.locktype = 'advisory' and h.objsubid = 1 and h.granted
	and h.database = l.database and h.pid = l.pid
	and h.classid = ((c.key >> 32) & 4294967295)::oid and h.objid = (c.key & 4294967295)::oid)`

// deadline is until when the holder of a row of c may believe in its lock: its
// lease is renewed by nothing but its grant and its session's seen.
const deadline = `(greatest(c.since, (select seen from {ns}_session where session = c.session)) + c.ttl_ms * interval '1 ms')`

// believed is the condition that the holder of a row of c has the lock, or may
// believe so: a session that ended without a release is waited for until its
// deadline, since its process may not know of the end.
var believed = `(` + deadline + ` > clock_timestamp() or ` + strings.ReplaceAll(live, "{and}", holds) + `)`

// ended is the condition that the session of a row of c is this one or has ended: a living
// session keeps the lock of its row, whichever process releases in the name of its owner.
const ended = `pg_try_advisory_xact_lock_shared(({class}), c.session)`

// contenders are who holds and who waits in a living session, {which} of them.
var contenders = `select c.owner, c.name, c.counter, c.since, 0 as place, ` + left + ` as expires
	from {ns}_holder c where {which} and ` + believed + `
	union all select c.owner, c.name, 0, c.since, c.place, 0
	from {ns}_waiter c where {which} and ` + strings.ReplaceAll(live, "{and}", "")

// foreign are the processes of the server that have the lock $1 and are no sessions
// of the namespace: somebody took it by hand.
const foreign = `select 'process ' || h.pid as owner, h.pid from pg_locks h where h.locktype = 'advisory' and h.objsubid = 1 and h.granted
	and h.database = (select oid from pg_database where datname = current_database())
	and h.classid = (($1::bigint >> 32) & 4294967295)::oid and h.objid = ($1::bigint & 4294967295)::oid
	and not exists (select from pg_locks l where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
		and l.database = h.database and l.pid = h.pid and l.classid = (({class})::bigint & 4294967295)::oid)`

// left is how long the holder's session still waits for a word, in ms.
const left = `greatest(1, (extract(epoch from ` + deadline + ` - clock_timestamp()) * 1000)::bigint)`

// overHolder replaces an existing row of c that excludes no session.
const overHolder = `
	on conflict (key) do update set owner = excluded.owner, name = excluded.name, session = excluded.session,
		counter = excluded.counter, ttl_ms = excluded.ttl_ms, since = excluded.since
		where `

const excludesNobody = `c.owner = excluded.owner or c.session = excluded.session or ` + deadline + ` <= clock_timestamp()`

// durably is a column of the statements whose commits wait for the disk. Other commits of a session do not.
const durably = `set_config('synchronous_commit', current_setting('interlock.synchronous_commit'), true)`

var statements = map[string]string{
	// take: keys, owners, names, session, ttl in ms. One row for each lock that it takes.
	//
	// The token is drawn after the lock is held: a row has its columns only after the condition
	// was found true. The row of the holder decides: a former one that did not release keeps
	// it until its deadline, and the lock is given back. The conflict clause reads the row as
	// it is now, where the statement's snapshot may be older than the lock.
	stTake: `insert into {ns}_holder as c (key, owner, name, session, counter, ttl_ms)
select key, owner, name, $4::int, nextval('{ns}_token'), $5::bigint
from (select unnest($1::bigint[]) as key, unnest($2::text[]) as owner, unnest($3::text[]) as name offset 0) a
where pg_try_advisory_lock(key)` + overHolder +
		`case when ` + excludesNobody + ` then true else not pg_advisory_unlock(c.key) end
returning pg_backend_pid(), key, counter, clock_timestamp(), ` + hint("name"),
	// try: keys, owners, whether to wait, names, session, ttl in ms. As take, with a row for
	// each, and a place in the line for those that wait.
	stTry: `with draw as materialized (
	select *, case when pg_try_advisory_lock(key) then nextval('{ns}_token') end as counter
	from unnest($1::bigint[], $2::text[], $3::bool[], $4::text[]) as a (key, owner, waits, name)
), held as (
	insert into {ns}_holder as c (key, owner, name, session, counter, ttl_ms)
	select key, owner, name, $5::int, counter, $6::bigint from draw where counter is not null` + overHolder + excludesNobody + `
	returning key
), waits as (
	insert into {ns}_waiter (key, owner, name, session)
	select key, owner, name, $5 from draw where waits and key not in (select key from held)
	on conflict (key, owner) do update set session = excluded.session
	returning key, xmax = 0 as changed
), gone as (
	delete from {ns}_waiter w using draw d where w.key = d.key and w.owner = d.owner and d.key in (select key from held)
)
select pg_backend_pid(), d.key, case when got then d.counter end, clock_timestamp(),
	case when d.counter is not null and not got then pg_advisory_unlock(d.key) end,
	h.owner, h.since, case when got or came then ` + hint("d.name") + ` end
from (select *, key in (select key from held) as got, key in (select key from waits where changed) as came from draw offset 0) d
left join {ns}_holder h on h.key = d.key`,
	// reserve: a drawn counter. Raises the reserved counter if less than 500 are left. Another
	// session sees it raised only when that is durable. A crash may forget what was drawn below
	// it: the first session after that goes on above it.
	stReserve: `insert into {ns}_reserved as r (id, counter)
select 1, $1::bigint + 1000 where $1 + 500 > coalesce((select counter from {ns}_reserved where id = 1), 0)
on conflict (id) do update set counter = excluded.counter where r.counter < excluded.counter
returning ` + durably,
	// reserved, which follows reserve, so that it sees what others have raised meanwhile.
	stReserved: `select counter from {ns}_reserved where id = 1`,
	// undo: keys. Gives back what a try that failed may have taken; harmless if it took nothing.
	stUndo: `select count(pg_advisory_unlock(key)) from unnest($1::bigint[]) as a (key)`,
	// register: key, owner, name, session. For a name that this session holds for
	// another owner: trying would succeed.
	stRegister: `with noted as (
	insert into {ns}_waiter (key, owner, name, session) values ($1::bigint, $2::text, $3::text, $4::int)
	on conflict (key, owner) do nothing returning 1
) select pg_backend_pid(), case when exists (select from noted) then ` + hint("$3") + ` end`,
	// leave: key, owner. Also of what an ended session held.
	stLeave: `with gone as (delete from {ns}_waiter where key = $1::bigint and owner = $2::text returning name),
	freed as (delete from {ns}_holder c where key = $1 and owner = $2 and ` + ended + ` returning name)
select ` + hint("name") + ` from (select name from gone union all select name from freed) left_behind`,
	// give: keys, owners. One row for each released lock that had its row.
	// The row is removed before the lock is free, so that who takes it next waits for this
	// transaction's end.
	stGive: `delete from {ns}_holder c using (select unnest($1::bigint[]) as key, unnest($2::text[]) as owner offset 0) g
where c.key = g.key and c.owner = g.owner
returning pg_backend_pid(), c.key, pg_advisory_unlock(c.key), ` + hint("c.name"),
	// unlock: keys, owners. Harmless if a lock is not ours.
	stUnlock: `with given as materialized (
	select * from unnest($1::bigint[], $2::text[]) as g (key, owner)
), gone as (
	delete from {ns}_waiter w using given g where w.key = g.key and w.owner = g.owner returning w.name
), freed as (
	delete from {ns}_holder c using given g where c.key = g.key and c.owner = g.owner and ` + ended + ` returning c.name
)
select count(pg_advisory_unlock(key)) from given where (
	select count(` + hint("name") + `) from (select name from gone union select name from freed) left_behind) >= 0`,
	// pass: keys, session. Wakes the first in line whose session lives: nobody
	// else can lock the id of a living session. It is a statement of its own
	// after unlock, so that it sees everyone who came before that.
	stPass: `select pg_notify('{ns}_wake_' || session::text, key::text) from (
	select distinct on (key) key, session from {ns}_waiter where key = any ($1::bigint[])
	and (session = $2::int or not pg_try_advisory_xact_lock_shared(({class}), session)) order by key, place) w`,
	// ping: session, ttl in ms. What it writes is what other sessions go by if this
	// one ends, so that nothing else renews the lease.
	stPing: `insert into {ns}_session (session, ttl_ms) values ($1::int, $2::bigint)
	on conflict (session) do update set seen = excluded.seen returning pg_backend_pid()`,
	// sweep: session. Removes what dead sessions left, but for what they may still
	// believe to hold.
	stSweep: `with waiters as (
	delete from {ns}_waiter where session <> $1::int and pg_try_advisory_xact_lock_shared(({class}), session)
), holders as (
	delete from {ns}_holder c where session <> $1 and ` + deadline + ` <= clock_timestamp()
	and pg_try_advisory_xact_lock_shared(({class}), session)
), sessions as (
	delete from {ns}_session where session <> $1 and seen + ttl_ms * interval '1 ms' <= clock_timestamp()
	and pg_try_advisory_xact_lock_shared(({class}), session)
) delete from {ns}_watcher where session <> $1 and pg_try_advisory_xact_lock_shared(({class}), session)`,
	// show: key, name. The holder comes first. The counter is 0 of those that wait, and -1 of
	// a lock that was taken by hand.
	stShow: `select owner, counter, floor(extract(epoch from since) * 1000000)::bigint, expires
from (` + strings.ReplaceAll(contenders, "{which}", "c.key = $1::bigint and c.name = $2::text") + `
	union all select owner, $2, -1, null, 0, 0 from (` + foreign + `) f) c order by counter desc, place`,
	// list: prefix, limit in names.
	stList: `select name, owner, counter, floor(extract(epoch from since) * 1000000)::bigint, expires from (
	select *, dense_rank() over (order by name) as nth
	from (` + strings.ReplaceAll(contenders, "{which}", "starts_with(c.name, $1::text)") + `) c
) listed where nth <= $2::bigint order by name, counter desc, place`,
	// break: key, name, owner, reason, by. Records it if owner holds name now,
	// and asks the holder's session to give it up.
	stBreak: `with held as (
	select c.name, c.owner, c.counter, c.session from {ns}_holder c
	where c.key = $1::bigint and c.name = $2::text and c.owner = $3::text and ` + believed + `
), noted as (
	insert into {ns}_break (name, owner, reason, who, counter) select name, owner, $4::text, $5::text, counter from held returning at
)
select counter, floor(extract(epoch from (select at from noted)) * 1000000)::bigint, session,
	pg_notify('{ns}_wake_' || session::text, '!' || $1::bigint::text || ' ' || owner) is null, ` + durably + ` from held`,
	// break foreign: key, name, owner, reason, by. Records it if that process holds the
	// lock now, and ends its session.
	stForeign: `with held as (
	select pid from (` + foreign + `) f where owner = $3::text
), noted as (
	insert into {ns}_break (name, owner, reason, who, counter) select $2::text, $3, $4::text, $5::text, 0 from held limit 1 returning at
)
select 0, floor(extract(epoch from (select at from noted)) * 1000000)::bigint, pg_terminate_backend(pid), ` + durably + ` from held`,
	// held: key, owner. Whether a session still has the lock for owner.
	stHeld: `select exists (select from {ns}_holder c where c.key = $1::bigint and c.owner = $2::text
	and ` + strings.ReplaceAll(live, "{and}", holds) + `)`,
	// end: session. Ends the backend that holds its id.
	stEnd: `select pg_terminate_backend(l.pid) from pg_locks l where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
	and l.database = (select oid from pg_database where datname = current_database())
	and l.classid = (({class})::bigint & 4294967295)::oid and l.objid = ($1::int::bigint & 4294967295)::oid`,
	// breaks: name or empty, limit.
	stBreaks: `select name, owner, reason, who, counter, floor(extract(epoch from at) * 1000000)::bigint
from {ns}_break where name = $1::text or $1 = '' order by id desc limit $2::int`,
	// depart: session. It waits for nothing any more, and keeps what it holds.
	stDepart:   `delete from {ns}_waiter where session = $1::int`,
	stListen:   `listen {ns}_watch`,
	stUnlisten: `unlisten {ns}_watch`,
	// attend and forget: session.
	stAttend: `insert into {ns}_watcher values ($1::int) on conflict do nothing`,
	stForget: `delete from {ns}_watcher where session = $1::int`,
}
