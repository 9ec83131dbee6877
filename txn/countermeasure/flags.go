package countermeasure

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/internal/sqltable"
)

// flags has the table of a [SemanticLock], for one resource. Released rows stay, because an existing row can
// be locked. Column changes shows whether a MariaDB snapshot is old.
type flags struct {
	sqltable.Tables
	resource string
}

var flagTables = sqltable.Layout{Part: "semanticlock", Default: "interlock_semantic_lock", Tables: map[string]string{"flags": ""},
	Indexes: map[string]string{"free": "_free"}}

func (f flags) create(ctx context.Context) error {
	return f.Create(ctx,
		`create table if not exists {flags} (
			resource {name 512} not null primary key,
			owner {name 512} not null,
			purpose {text} not null,
			former {name 512} not null,
			risk {text} not null,
			changes bigint not null,
			since_at {time} not null,
			until_at {time} not null{maria ,
			index (owner, until_at)}){engine}`,
		`{pg create index if not exists {free} on {flags} (until_at) where owner = ''}`)
}

// columns are those of a flag. Times are read as microseconds since 1970, which needs no
// time zone.
const columns = `owner, purpose, former, risk, changes, {micros since_at}, {micros until_at}, until_at <= {now}`

// read runs a query of columns.
func (f flags) read(ctx context.Context, query string, args ...any) (flag Flag, changes int64, found bool, err error) {
	flag.Resource = f.resource
	var since, until int64
	found, err = f.Row(ctx, query, args, &flag.Owner, &flag.Purpose, &flag.Former, &flag.Risk, &changes, &since, &until, &flag.Expired)
	if flag.Owner == "" {
		return Flag{Resource: f.resource}, changes, found, err
	}
	flag.Since, flag.Until = time.UnixMicro(since).UTC(), time.UnixMicro(until).UTC()
	return flag, changes, found, err
}

// look reads the flag, and locks it as locking says.
func (f flags) look(ctx context.Context, locking string) (flag Flag, found bool, err error) {
	flag, _, found, err = f.read(ctx, `select `+columns+` from {flags} where resource = ? `+locking, f.resource)
	return flag, found, err
}

// take flags the resource for w in four cases: it is free, it has w's own flag, the flag's owner
// has ended, or w accepts the risk. Otherwise it returns the flag of the other owner.
func (f flags) take(ctx context.Context, w Intent, ended string) (held *Flag, err error) {
	if f.Maria() {
		return f.takeMaria(ctx, w, ended)
	}
	return f.takePostgres(ctx, w, ended)
}

// takePostgres always locks the row, so that it then reads the flag that prevented the statement.
func (f flags) takePostgres(ctx context.Context, w Intent, ended string) (*Flag, error) {
	var changes int64
	taken, err := f.Row(ctx, `
		with want (resource, owner, purpose, ended, risk, ttl, now) as (
			select ?::text, ?::text, ?::text, ?::text, ?::text, {span}, {now})
		insert into {flags} as f (resource, owner, purpose, former, risk, changes, since_at, until_at)
		select resource, owner, purpose, '', '', 1, now, now + ttl from want
		on conflict (resource) do update set
			owner = excluded.owner, purpose = excluded.purpose, changes = f.changes + 1,
			former = case f.owner when excluded.owner then f.former else f.owner end,
			risk = case when f.owner = excluded.owner then f.risk when f.owner in ('', (select ended from want)) then '' else (select risk from want) end,
			since_at = case f.owner when excluded.owner then f.since_at else excluded.since_at end,
			until_at = case f.owner when excluded.owner then greatest(f.until_at, excluded.until_at) else excluded.until_at end
		where f.owner in ('', excluded.owner, (select ended from want))
			or f.until_at <= {now} and (select risk from want) <> ''
		returning changes`,
		[]any{w.Resource, w.Owner, w.Purpose, ended, w.Risk, w.TTL.Microseconds()}, &changes)
	if err != nil || taken {
		return nil, err
	}
	held, _, err := f.look(ctx, "")
	return &held, err
}

// takeMaria locks the row, creating it if necessary, checks that the transaction's snapshot is not older
// than the last change, and only then writes.
func (f flags) takeMaria(ctx context.Context, w Intent, ended string) (*Flag, error) {
	was, changes, err := f.touch(ctx)
	if err != nil {
		return nil, err
	}
	own, risk := was.Owner == w.Owner, ""
	switch {
	case own:
		risk = was.Risk
	case was.Owner == "" || was.Owner == ended:
	case was.Expired && w.Risk != "":
		risk = w.Risk
	default:
		return &was, nil
	}
	if err := f.upToDate(ctx, changes); err != nil {
		return nil, err
	}
	times, former := `since_at = {now}, until_at = {now} + {span}`, was.Owner
	if own {
		times, former = `until_at = greatest(until_at, {now} + {span})`, was.Former
	}
	_, err = f.Exec(ctx, `update {flags} set owner = ?, purpose = {?}, former = {?}, risk = {?},
		changes = changes + 1, `+times+` where resource = ?`, w.Owner, w.Purpose, former, risk, w.TTL.Microseconds(), w.Resource)
	return nil, err
}

// touch locks the row on MariaDB and returns it as last committed. FOR UPDATE on a missing row would lock a
// gap, and two transactions would block each other from filling it. An empty text is written in hexadecimal,
// because one sql_mode turns it into NULL.
func (f flags) touch(ctx context.Context) (flag Flag, changes int64, err error) {
	flag, changes, _, err = f.read(ctx, `
		insert into {flags} (resource, owner, purpose, former, risk, changes, since_at, until_at)
		values (?, {empty}, {empty}, {empty}, {empty}, 0, {now}, {now})
		on duplicate key update resource = values(resource) returning `+columns, f.resource)
	return flag, changes, err
}

// upToDate rejects a transaction whose snapshot is older than the last change.
func (f flags) upToDate(ctx context.Context, changes int64) error {
	if changes == 0 {
		return nil // no flag was changed
	}
	var seen int64
	_, err := f.Row(ctx, `select changes from {flags} where resource = ?`, []any{f.resource}, &seen)
	if err == nil && seen != changes {
		err = f.Outdated()
	}
	return err
}

// hold returns the flag, and keeps it unchanged until the transaction ends.
func (f flags) hold(ctx context.Context) (Flag, error) {
	if f.Maria() {
		flag, changes, err := f.touch(ctx)
		if err != nil {
			return flag, err
		}
		return flag, f.upToDate(ctx, changes)
	}
	flag, found, err := f.look(ctx, "for share")
	if err != nil || found {
		return flag, err
	}
	// A missing row cannot be locked.
	_, err = f.Exec(ctx, `insert into {flags} (resource, owner, purpose, former, risk, changes, since_at, until_at)
		values (?, '', '', '', '', 0, {now}, {now}) on conflict do nothing`, f.resource)
	if err != nil {
		return flag, err
	}
	flag, _, err = f.look(ctx, "for share")
	return flag, err
}

func (f flags) release(ctx context.Context, owner string) (was bool, err error) {
	n, err := f.Exec(ctx, `update {flags} set owner = {empty}, changes = changes + 1, until_at = {now}
		where resource = ? and owner = ?`, f.resource, owner)
	return n > 0, err
}
