package fence

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// enterPostgres is one statement. It writes the row whatever the tokens are, because the write
// locks the row and makes a repeatable-read transaction that began too early fail. Column
// previous returns the previous mark without a second read. It writes nothing for an
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
returning from_token`, []any{r.resource, int64(r.to), label(driver.RebaseSource(r.by, r.reason)), label(r.reason), label(r.by)},
		(*int64)(&old.Token))
	return old, plausible, err
}
