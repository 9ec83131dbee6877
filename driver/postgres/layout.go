package postgres

import "strings"

// The tables of a namespace. Contenders and watchers are unlogged: they mean
// nothing without the sessions that a crash ends. Owners and names compare by
// bytes.
const schema = `
create unlogged table if not exists {ns}_contender (
	key bigint not null,
	owner text collate "C" not null,
	name text collate "C" not null,
	session int not null,
	counter bigint not null,
	ttl_ms bigint not null,
	since timestamptz not null default clock_timestamp(),
	place bigint generated always as identity,
	primary key (key, owner)
);
create index if not exists {ns}_contender_name on {ns}_contender (name, place);
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
`

// Prepared statements of a session, by name.
const (
	stTry      = "interlock_try"
	stRegister = "interlock_register"
	stLeave    = "interlock_leave"
	stUnlock   = "interlock_unlock"
	stPass     = "interlock_pass"
	stPing     = "interlock_ping"
	stSweep    = "interlock_sweep"
	stShow     = "interlock_show"
	stList     = "interlock_list"
	stBreak    = "interlock_break"
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

// idle is how long the holder's server process still waits for a word, which
// only its own role may see; others are told the whole of it.
const idle = `case when c.counter > 0 then c.ttl_ms - coalesce((select least(c.ttl_ms - 1, greatest(0,
	(extract(epoch from clock_timestamp() - a.state_change) * 1000)::bigint))
	from pg_locks l join pg_stat_activity a using (pid)
	where l.locktype = 'advisory' and l.objsubid = 2 and l.granted and a.datname = current_database()
	and l.classid = (({class})::bigint & 4294967295)::oid and l.objid = (c.session::bigint & 4294967295)::oid limit 1), 0)
	else 0 end`

var statements = map[string]string{
	// try: key, owner, name, session, ttl in ms, whether to wait.
	//
	// The token is drawn after the lock is held: CASE evaluates its result only
	// when its condition, which takes the lock, was found true. The message
	// makes the commit write to the log and flush it, and with it every token
	// drawn before: nextval alone writes to the log only now and then, and a
	// number that was handed out would come again after a crash.
	// What others held on this key they have lost, since we hold it.
	stTry: `with draw as materialized (
	select case when pg_try_advisory_lock($1::bigint) then nextval('{ns}_token') end as counter
), noted as (
	insert into {ns}_contender as c (key, owner, name, session, counter, ttl_ms)
	select $1, $2::text, $3::text, $4::int, coalesce(counter, 0), $5::bigint from draw where counter is not null or $6::bool
	on conflict (key, owner) do update set session = excluded.session, counter = excluded.counter,
		since = case when excluded.counter > 0 then excluded.since else c.since end
	returning (xmax = 0 or counter > 0) as changed
), swept as (
	delete from {ns}_contender where key = $1 and counter > 0 and owner <> $2
	and (select counter from draw) is not null
)
select pg_backend_pid(), d.counter, h.owner, floor(extract(epoch from h.since) * 1000000)::bigint,
	case when d.counter is not null then pg_logical_emit_message(true, 'interlock', '') is null end,
	case when (select changed from noted) then ` + hint("$3") + ` end
from draw d left join lateral (
	select owner, since from {ns}_contender where d.counter is null and key = $1 and counter > 0 order by counter desc limit 1
) h on true`,
	// register: key, owner, name, session, ttl in ms. For a name that this
	// session holds for another owner: trying would succeed.
	stRegister: `with noted as (
	insert into {ns}_contender (key, owner, name, session, counter, ttl_ms) values ($1::bigint, $2::text, $3::text, $4::int, 0, $5::bigint)
	on conflict (key, owner) do nothing returning 1
) select pg_backend_pid(), case when exists (select from noted) then ` + hint("$3") + ` end`,
	// leave: key, owner.
	stLeave: `with gone as (delete from {ns}_contender where key = $1::bigint and owner = $2::text returning name)
select ` + hint("name") + ` from gone`,
	// unlock: key, owner. Harmless if the lock is not ours.
	stUnlock: `with gone as (delete from {ns}_contender where key = $1::bigint and owner = $2::text returning name)
select pg_advisory_unlock($1), (select ` + hint("name") + ` from gone)`,
	// pass: key, session. Wakes the first in line whose session lives: nobody
	// else can lock the id of a living session. It is a statement of its own
	// after unlock, so that it sees everyone who came before that.
	stPass: `select pg_notify('{ns}_wake_' || session::text, $1::bigint::text) from (
	select session from {ns}_contender where key = $1 and counter = 0
	and (session = $2::int or not pg_try_advisory_xact_lock_shared(({class}), session)) order by place limit 1) w`,
	stPing: `select pg_backend_pid()`,
	// sweep: session. Removes what dead sessions left.
	stSweep: `with contenders as (
	delete from {ns}_contender where session <> $1::int and pg_try_advisory_xact_lock_shared(({class}), session)
) delete from {ns}_watcher where session <> $1 and pg_try_advisory_xact_lock_shared(({class}), session)`,
	// show: key, name. The holder comes first.
	stShow: `select c.owner, c.counter, floor(extract(epoch from c.since) * 1000000)::bigint, ` + idle + `
from {ns}_contender c where c.key = $1::bigint and c.name = $2::text and (c.counter = 0 and ` + strings.ReplaceAll(live, "{and}", "") + `
	or c.counter > 0 and ` + strings.ReplaceAll(live, "{and}", holds) + `) order by (c.counter > 0) desc, c.place`,
	// list: prefix, limit in names.
	stList: `select name, owner, counter, since, idle from (
	select c.name, c.owner, c.counter, floor(extract(epoch from c.since) * 1000000)::bigint as since, ` + idle + ` as idle,
		c.place, dense_rank() over (order by c.name) as nth
	from {ns}_contender c where starts_with(c.name, $1::text) and (c.counter = 0 and ` + strings.ReplaceAll(live, "{and}", "") + `
		or c.counter > 0 and ` + strings.ReplaceAll(live, "{and}", holds) + `)
) listed where nth <= $2::bigint order by name, (counter > 0) desc, place`,
	// break: key, name, owner, reason, by. Records it if owner holds name now,
	// and asks the holder's session to give it up.
	stBreak: `with held as (
	select c.name, c.owner, c.counter, c.session from {ns}_contender c
	where c.key = $1::bigint and c.name = $2::text and c.owner = $3::text and c.counter > 0 and ` + strings.ReplaceAll(live, "{and}", holds) + `
), noted as (
	insert into {ns}_break (name, owner, reason, who, counter) select name, owner, $4::text, $5::text, counter from held returning at
)
select counter, floor(extract(epoch from (select at from noted)) * 1000000)::bigint, session,
	pg_notify('{ns}_wake_' || session::text, '!' || $1::bigint::text || ' ' || owner) is null from held`,
	// held: key, owner. Whether owner still holds.
	stHeld: `select exists (select from {ns}_contender c where c.key = $1::bigint and c.owner = $2::text and c.counter > 0
	and ` + strings.ReplaceAll(live, "{and}", holds) + `)`,
	// end: session. Ends whoever holds its id.
	stEnd: `select pg_terminate_backend(l.pid) from pg_locks l where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
	and l.database = (select oid from pg_database where datname = current_database())
	and l.classid = (({class})::bigint & 4294967295)::oid and l.objid = ($1::int::bigint & 4294967295)::oid`,
	// breaks: name or empty, limit.
	stBreaks: `select name, owner, reason, who, counter, floor(extract(epoch from at) * 1000000)::bigint
from {ns}_break where name = $1::text or $1 = '' order by id desc limit $2::int`,
	// depart: session. It waits for nothing any more, and keeps what it holds.
	stDepart:   `delete from {ns}_contender where session = $1::int and counter = 0`,
	stListen:   `listen {ns}_watch`,
	stUnlisten: `unlisten {ns}_watch`,
	// attend and forget: session.
	stAttend: `insert into {ns}_watcher values ($1::int) on conflict do nothing`,
	stForget: `delete from {ns}_watcher where session = $1::int`,
}
