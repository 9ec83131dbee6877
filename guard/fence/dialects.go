package fence

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// enterPostgres enters by one statement. It writes the row whatever the tokens are, because
// the write locks the row and makes a repeatable-read transaction that began too early fail.
// Column previous returns the previous mark without a second read. It writes nothing for an
// implausible token.
func (m marks) enterPostgres(ctx context.Context, e entry) (seen interlock.Token, plausible bool, err error) {
	plausible, err = m.Row(ctx, `
insert into {marks} as mark (resource, token, previous, source, raised_at)
select $1::text, $2::bigint, 0, $3::text, {now} where $2::bigint <= `+tokenLimit+`
on conflict (resource) do update set
	previous = mark.token,
	token = greatest(mark.token, excluded.token),
	source = case when mark.token < excluded.token then excluded.source else mark.source end,
	raised_at = case when mark.token < excluded.token then excluded.raised_at else mark.raised_at end
returning previous`, []any{e.resource, int64(e.token), e.source}, (*int64)(&seen))
	return seen, plausible, err
}

func (p protected) enterPostgres(ctx context.Context, e entry) (f found, err error) {
	compare := `<=`
	if p.Strict {
		compare = `<`
	}
	n, err := p.Exec(ctx, `update {rows} set {mark} = $1::bigint
		where {key} = $2 and coalesce({mark}, 0) `+compare+` $1::bigint and $1::bigint <= `+tokenLimit, int64(e.token), e.resource)
	if err != nil || n > 0 {
		return found{rows: int(n), plausible: true, raised: true}, err
	}
	// Find out why no row was raised.
	return p.look(ctx, e, ``)
}

func (m marks) readPostgres(ctx context.Context, resource, locking string) (mark driver.Mark, err error) {
	var raised time.Time
	_, err = m.Row(ctx, `select token, source, raised_at from {marks} where resource = ? `+locking,
		[]any{resource}, (*int64)(&mark.Token), &mark.Source, &raised)
	mark.Raised = raised.UTC()
	return mark, err
}

// rebasePostgres sets the mark and writes the audit row in one statement.
func (m marks) rebasePostgres(ctx context.Context, r rebase) (old driver.Mark, plausible bool, err error) {
	if old, err = m.readPostgres(ctx, r.resource, `for update`); err != nil {
		return old, false, err
	}
	plausible, err = m.Row(ctx, `
with rebased as (
	insert into {marks} as mark (resource, token, previous, source, raised_at)
	select $1::text, $2::bigint, 0, $3::text, {now}
	where $2::bigint <= `+tokenLimit+`
	on conflict (resource) do update set
		previous = mark.token, token = excluded.token, source = excluded.source, raised_at = excluded.raised_at
	returning previous)
insert into {audit} (resource, from_token, to_token, reason, rebased_by, rebased_at)
select $1::text, previous, $2::bigint, $4::text, $5::text, {now} from rebased
returning from_token`, []any{r.resource, int64(r.to), sqltable.Clean(driver.RebaseSource(r.by, r.reason)), sqltable.Clean(r.reason), sqltable.Clean(r.by)},
		(*int64)(&old.Token))
	return old, plausible, err
}

// On MariaDB, marks are read by locking statements, which see the last commit. Reads without
// locks may show a snapshot that the transaction took with its first such read. InnoDB lets a
// transaction overwrite rows that its snapshot does not show. So if a transaction read before it
// entered, Enter fails if the mark in its snapshot differs from the locked one.
//
// Nothing depends on counts of affected rows: an option of the client decides whether they
// count found or changed rows. An empty text is written in hexadecimal, because one sql_mode
// turns it into NULL.

// enterMaria enters by one statement, like enterPostgres. An assignment may see those before
// it, so token comes last. Column entries makes every entry a change.
func (m marks) enterMaria(ctx context.Context, e entry) (seen interlock.Token, plausible bool, err error) {
	if !nothingRead(m.SQL()) {
		if err := m.upToDate(ctx, e); err != nil {
			return 0, false, err
		}
	}
	plausible, err = m.Row(ctx, `
insert into {marks} (resource, token, previous, entries, source, raised_at)
select ?, ?, 0, 1, {?}, {now} from dual where ? <= `+tokenLimit+`
on duplicate key update
	previous = token,
	entries = entries + 1,
	source = if(token < values(token), values(source), source),
	raised_at = if(token < values(token), values(raised_at), raised_at),
	token = greatest(token, values(token))
returning previous`, []any{e.resource, int64(e.token), e.source, int64(e.token)}, (*int64)(&seen))
	return seen, plausible, err
}

// lockedMark is a locked mark.
type lockedMark struct {
	entries int64 // 0 if nothing has entered
	mark    driver.Mark
}

// lockMaria locks a mark, and creates it if it does not exist. SELECT FOR UPDATE of a missing
// mark would lock a gap, and two transactions that did so would prevent each other from
// inserting.
func (m marks) lockMaria(ctx context.Context, resource string, token interlock.Token) (was lockedMark, plausible bool, err error) {
	var raised int64
	plausible, err = m.Row(ctx, `
insert into {marks} (resource, token, previous, entries, source, raised_at)
select ?, 0, 0, 0, {empty}, {now} from dual where ? <= `+tokenLimit+`
on duplicate key update resource = values(resource)
returning entries, token, source, {micros raised_at}`, []any{resource, int64(token)},
		&was.entries, (*int64)(&was.mark.Token), &was.mark.Source, &raised)
	if was.entries == 0 {
		return lockedMark{}, plausible, err
	}
	was.mark.Raised = time.UnixMicro(raised).UTC()
	return was, plausible, err
}

// upToDate returns an error if the transaction reads a snapshot from before the last entry.
func (m marks) upToDate(ctx context.Context, e entry) error {
	was, _, err := m.lockMaria(ctx, e.resource, e.token)
	if err != nil || was.entries == 0 {
		return err
	}
	var read int64
	_, err = m.Row(ctx, `select entries from {marks} where resource = ?`, []any{e.resource}, &read)
	if err == nil && read != was.entries {
		err = m.Outdated()
	}
	return err
}

func (p protected) enterMaria(ctx context.Context, e entry) (f found, err error) {
	f, err = p.look(ctx, e, ` for update`)
	if err != nil || f.rows != 1 || !f.plausible || f.seen > e.token || p.Strict && f.seen == e.token {
		return f, err
	}
	this, key := p.Exactly("key", e.resource)
	if !nothingRead(p.SQL()) {
		read := interlock.Token(-1)
		_, err = p.Row(ctx, `select coalesce({mark}, 0) from {rows} where `+this, key, (*int64)(&read))
		if err == nil && read != f.seen {
			err = p.Outdated()
		}
		if err != nil {
			return f, err
		}
	}
	f.raised = true
	if f.seen == e.token {
		return f, nil
	}
	_, err = p.Exec(ctx, `update {rows} set {mark} = ? where `+this, append([]any{int64(e.token)}, key...)...)
	return f, err
}

func (m marks) showMaria(ctx context.Context, resource string) (mark driver.Mark, err error) {
	var raised int64
	found, err := m.Row(ctx, `select token, source, {micros raised_at} from {marks} where resource = ?`,
		[]any{resource}, (*int64)(&mark.Token), &mark.Source, &raised)
	if found {
		mark.Raised = time.UnixMicro(raised).UTC()
	}
	return mark, err
}

func (m marks) rebaseMaria(ctx context.Context, r rebase) (old driver.Mark, plausible bool, err error) {
	was, plausible, err := m.lockMaria(ctx, r.resource, r.to)
	if err != nil || !plausible {
		return driver.Mark{}, plausible, err
	}
	_, err = m.Exec(ctx, `update {marks} set previous = ?, token = ?, entries = entries + 1, source = ?, raised_at = {now}
		where resource = ?`, int64(was.mark.Token), int64(r.to), sqltable.Clean(driver.RebaseSource(r.by, r.reason)), r.resource)
	if err != nil {
		return driver.Mark{}, true, err
	}
	_, err = m.Exec(ctx, `insert into {audit} (resource, from_token, to_token, reason, rebased_by, rebased_at)
		values (?, ?, ?, ?, ?, {now})`, r.resource, int64(was.mark.Token), int64(r.to), sqltable.Clean(r.reason), sqltable.Clean(r.by))
	return was.mark, true, err
}
