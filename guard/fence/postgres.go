package fence

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// postgres keeps marks in PostgreSQL. One statement does what is to be done.
type postgres struct{}

// postgresLimit is the highest plausible token at the database's own clock, in
// SQL: nothing above it is stored, since a mark that no later token can reach
// would lock everybody out.
var postgresLimit = fmt.Sprintf("(((extract(epoch from clock_timestamp()) * 1000000)::bigint - %d + %d) << %d | %d)",
	int64(interlock.EpochUnixMicro), interlock.MaxAhead.Microseconds(), bits.Len(interlock.MaxSub), interlock.MaxSub)

func (postgres) create(marks, audit string) []string {
	return []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock fence: create', 0))`,
		`create table if not exists ` + marks + ` (
			resource text primary key,
			token bigint not null,
			previous bigint not null,
			source text not null,
			raised_at timestamptz not null)`,
		`create table if not exists ` + audit + ` (
			id bigint generated always as identity primary key,
			resource text not null,
			from_token bigint not null,
			to_token bigint not null,
			reason text not null,
			rebased_by text not null,
			rebased_at timestamptz not null)`,
	}
}

// enterTable is one statement. It writes the row whatever the tokens are, since
// that is what locks it, makes a transaction of repeatable reads that began too
// early fail, and tells by column previous, exactly and without a second look,
// what had been seen. It writes nothing for an implausible token.
const enterTable = `
insert into %[1]s as mark (resource, token, previous, source, raised_at)
select $1::text, $2::bigint, 0, $3::text, clock_timestamp() where $2::bigint <= %[2]s
on conflict (resource) do update set
	previous = mark.token,
	token = greatest(mark.token, excluded.token),
	source = case when mark.token < excluded.token then excluded.source else mark.source end,
	raised_at = case when mark.token < excluded.token then excluded.raised_at else mark.raised_at end
returning previous`

func (postgres) enter(ctx context.Context, db driver.SQL, table string, e entry) (seen interlock.Token, plausible bool, err error) {
	plausible, err = row(ctx, db, fmt.Sprintf(enterTable, table, postgresLimit),
		[]any{e.resource, int64(e.token), e.source}, (*int64)(&seen))
	return seen, plausible, err
}

func (postgres) enterColumn(ctx context.Context, db driver.SQL, q columns, e entry) (f found, err error) {
	compare := "<="
	if e.strict {
		compare = "<"
	}
	query := fmt.Sprintf(`update %[1]s set %[2]s = $1::bigint
		where %[3]s = $2 and coalesce(%[2]s, 0) %[4]s $1::bigint and $1::bigint <= %[5]s`,
		q.table, q.column, q.key, compare, postgresLimit)
	n, err := db.Exec(ctx, query, int64(e.token), e.resource)
	if err != nil || n > 0 {
		return found{rows: int(n), plausible: true, raised: true}, err
	}
	// Why no row was raised.
	query = fmt.Sprintf(`select coalesce(%s, 0), $1::bigint <= %s from %s where %s = $2`, q.column, postgresLimit, q.table, q.key)
	err = db.Query(ctx, query, []any{int64(e.token), e.resource}, func(scan func(...any) error) error {
		f.rows++
		return scan((*int64)(&f.seen), &f.plausible)
	})
	return f, err
}

func (postgres) shared() string { return `for share` }

func (postgres) show(ctx context.Context, db driver.SQL, table, resource string) (driver.Mark, error) {
	return readPostgres(ctx, db, table, resource, "")
}

func readPostgres(ctx context.Context, db driver.SQL, table, resource, locking string) (m driver.Mark, err error) {
	var raised time.Time
	_, err = row(ctx, db, `select token, source, raised_at from `+table+` where resource = $1::text `+locking,
		[]any{resource}, (*int64)(&m.Token), &m.Source, &raised)
	m.Raised = raised.UTC()
	return m, err
}

// rebaseTable sets the mark and writes the audit row in one statement.
const rebaseTable = `
with rebased as (
	insert into %[1]s as mark (resource, token, previous, source, raised_at)
	select $1::text, $2::bigint, 0, $3::text, clock_timestamp() where $2::bigint <= %[3]s
	on conflict (resource) do update set
		previous = mark.token, token = excluded.token, source = excluded.source, raised_at = excluded.raised_at
	returning previous)
insert into %[2]s (resource, from_token, to_token, reason, rebased_by, rebased_at)
select $1::text, previous, $2::bigint, $4::text, $5::text, clock_timestamp() from rebased
returning from_token`

func (postgres) rebase(ctx context.Context, db driver.SQL, marks, audit string, r rebase) (old driver.Mark, plausible bool, err error) {
	if old, err = readPostgres(ctx, db, marks, r.resource, "for update"); err != nil {
		return old, false, err
	}
	plausible, err = row(ctx, db, fmt.Sprintf(rebaseTable, marks, audit, postgresLimit),
		[]any{r.resource, int64(r.to), label(driver.RebaseSource(r.by, r.reason)), label(r.reason), label(r.by)},
		(*int64)(&old.Token))
	return old, plausible, err
}
