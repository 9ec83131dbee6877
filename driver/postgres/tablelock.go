package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// clockFloor is the server's clock in microseconds since 2020.
var clockFloor = `(floor(extract(epoch from clock_timestamp()) * 1000000)::bigint - ` + epochMicros + `)`

// lockRow: name, owner, TTL in ms, for how many ms the caller will wait for
// word (0 if it will not). The row's counter is computed while the row is
// locked, from the counter that it replaces; a row that is made anew starts
// above every row that was swept, which is kept under the empty name.
var lockRow = `with won as (
	insert into {ns}_lease as l (name, owner, counter, since, expires)
	values ($1::text, $2::text, greatest(` + clockFloor + `, 1 + coalesce((select counter from {ns}_lease where name = ''), 0)),
		clock_timestamp(), clock_timestamp() + $3::bigint * interval '1 ms')
	on conflict (name) do update set owner = excluded.owner,
		counter = case when l.owner = $2 and l.expires > clock_timestamp() then l.counter
			else greatest(l.counter + 1, ` + clockFloor + `) end,
		since = case when l.owner = $2 and l.expires > clock_timestamp() then l.since else clock_timestamp() end,
		expires = clock_timestamp() + $3::bigint * interval '1 ms'
	where l.owner is null or l.owner = $2 or l.expires <= clock_timestamp()
	returning counter
), awaited as (
	update {ns}_lease set awaited = clock_timestamp() + $4::bigint * interval '1 ms'
	where name = $1 and $4 > 0 and not exists (select from won)
)
select counter, '', clock_timestamp(), clock_timestamp(), 0::bigint from won
union all
select 0, coalesce(owner, ''), since, expires, greatest(0, extract(epoch from expires - clock_timestamp()) * 1000)::bigint
from {ns}_lease where name = $1 and not exists (select from won)`

// freeRow: name, owner. A release that is lost in a crash costs time and no
// safety, so it does not wait for the disk.
const freeRow = `with freed as (
	update {ns}_lease set owner = null, expires = clock_timestamp() where name = $1::text and owner = $2::text
	returning name, awaited > clock_timestamp() as awaited
)
select set_config('synchronous_commit', 'off', true), (select pg_notify('{ns}_free', name) is null from freed where awaited)`

// keepRows: names, owners, TTLs in ms.
const keepRows = `update {ns}_lease l set expires = clock_timestamp() + h.ttl * interval '1 ms'
from unnest($1::text[], $2::text[], $3::bigint[]) as h (name, owner, ttl)
where l.name = h.name and l.owner = h.owner and l.expires > clock_timestamp() returning l.owner`

// sweepSize is how many rows one sweep removes at most.
const sweepSize = 10000

// sweepRows removes what nobody has wanted for a day: limit.
const sweepRows = `with old as (
	select name from {ns}_lease where name <> '' and expires < clock_timestamp() - interval '1 day' limit $1::bigint for update skip locked
), gone as (
	delete from {ns}_lease l using old where l.name = old.name returning counter
)
insert into {ns}_lease (name, counter, since, expires)
select '', max(counter), clock_timestamp(), clock_timestamp() from gone having count(*) > 0
on conflict (name) do update set counter = greatest({ns}_lease.counter, excluded.counter)`

// refusedFor is what a try was told: who holds, and for how long at most.
type refusedFor struct {
	owner        string
	since, until time.Time // by the server's clock
	left         time.Duration
}

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (t *Table) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := text("acquire", r.Name, r.Owner); err != nil {
		return driver.Grant{}, err
	}
	t.held.hush(r.Owner)
	woken, leave := t.wakes.enter(r.Name)
	defer leave()
	for refusals := 1; ; refusals++ {
		grant, held, err := t.try(ctx, r)
		if err != nil || held == nil {
			return grant, err
		}
		if r.NoWait {
			return driver.Grant{}, &interlock.HeldError{Name: r.Name, Owner: held.owner, Since: held.since, Until: held.until}
		}
		if tell := r.Events.Waiting; tell != nil && refusals == 1 {
			tell(driver.Place{Ahead: -1, Holder: held.owner})
		}
		if err := t.pause(ctx, r.Name, woken, t.interval(refusals, held.left)); err != nil {
			return driver.Grant{}, err
		}
	}
}

// try asks once. held is nil if it was granted.
func (t *Table) try(ctx context.Context, r driver.Request) (grant driver.Grant, held *refusedFor, err error) {
	var counter int64
	var now refusedFor
	var wait int64
	if !r.NoWait && t.listen != nil {
		wait = (2 * heartbeat).Milliseconds()
	}
	sent := boottime.Now()
	answered := false
	err = t.rows(ctx, "acquire", r.Name, func(rows pgx.Rows) error {
		answered = true
		var left int64
		err := rows.Scan(&counter, &now.owner, &now.since, &now.until, &left)
		now.left = time.Duration(left) * time.Millisecond
		return err
	}, lockRow, r.Name, r.Owner, r.Lease(t.ttl).Milliseconds(), wait)
	switch {
	case err != nil:
		return driver.Grant{}, nil, err
	case counter > 0:
		if err := driver.Plausible(counter, now.since); err != nil {
			return driver.Grant{}, nil, problem("acquire", r.Name, interlock.Definite, err)
		}
		grant, err = t.granted(r, sent, counter)
		return grant, nil, err
	case !answered:
		now.left = time.Millisecond // the row is newer than the statement's view: look again
	}
	return driver.Grant{}, &now, nil
}

// interval is the time to the next try: soon after the holder's time is over,
// and otherwise rarely where word of a release comes, or in growing intervals.
func (t *Table) interval(refusals int, left time.Duration) time.Duration {
	next := backoff.Policy{First: 50 * time.Millisecond, Max: heartbeat}.Delay(refusals, rand.Float64())
	if t.listen != nil && refusals > 1 {
		next = jittered()
	}
	return min(next, left+5*time.Millisecond)
}

func (t *Table) pause(ctx context.Context, name string, woken <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-t.life.Done():
		return problem("acquire", name, interlock.Uncertain, interlock.ErrClosed)
	case <-ctx.Done():
		return unanswered("acquire", name, ctx)
	}
	return nil
}

// Release gives up whatever owner has on name; see driver.Fenced.
func (t *Table) Release(ctx context.Context, name, owner string) error {
	if err := text("release", name, owner); err != nil {
		return err
	}
	t.held.remove(owner)
	return t.rows(ctx, "release", name, func(pgx.Rows) error { return nil }, freeRow, name, owner)
}
