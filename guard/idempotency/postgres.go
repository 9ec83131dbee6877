package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// postgres keeps records in PostgreSQL.
type postgres struct{}

func (postgres) create(n names) []string {
	return []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock idempotency: create', 0))`,
		`create table if not exists ` + n.table + ` (
			scope text not null,
			operation text not null,
			key text not null,
			fingerprint text not null,
			owner text not null,
			attempt bigint not null,
			lease_until timestamptz not null,
			created_at timestamptz not null,
			input bytea not null,
			points bytea not null,
			finished_at timestamptz,
			keep_until timestamptz,
			status bigint not null,
			header bytea not null,
			answer bytea not null,
			digest text not null,
			primary key (scope, operation, key))`,
		`create index if not exists ` + n.due + ` on ` + n.table + ` (lease_until) where finished_at is null`,
		`create index if not exists ` + n.old + ` on ` + n.table + ` (keep_until) where finished_at is not null`,
	}
}

// microseconds is an expression for a time span of a parameter.
func microseconds(parameter string) string { return parameter + `::bigint * interval '1 microsecond'` }

// until is an expression for the microseconds from one time to another.
func between(from, to string) string {
	return `(extract(epoch from ` + to + ` - ` + from + `) * 1000000)::bigint`
}

// claimPostgres is one statement. What is not ours to take is read from the
// statement's snapshot, without a version of the row being written. The snapshot
// may be older than what kept the claim from the row: the last column tells.
var claimPostgres = `
with claimed as (
	insert into %[1]s as r (scope, operation, key, fingerprint, owner, attempt, lease_until, created_at,
		input, points, status, header, answer, digest)
	values ($1::text, $2::text, $3::text, $4::text, $5::text, 1, clock_timestamp() + ` + microseconds("$6") + `, clock_timestamp(),
		$7::bytea, '', 0, '', '', '')
	on conflict (scope, operation, key) do update set
		attempt = r.attempt + case when r.owner = excluded.owner then 0 else 1 end,
		owner = excluded.owner,
		lease_until = clock_timestamp() + ` + microseconds("$6") + `
	where r.finished_at is null and r.fingerprint = excluded.fingerprint
		and (r.owner = excluded.owner or r.lease_until <= clock_timestamp())
	returning r.*),
shown as (
	select *, true as fresh from claimed
	union all
	select *, false from %[1]s where scope = $1::text and operation = $2::text and key = $3::text and not exists (select from claimed))
select fingerprint, owner, attempt, ` + between("clock_timestamp()", "lease_until") + `, ` + between("created_at", "clock_timestamp()") + `,
	finished_at is not null, status, input, points, header, answer, digest, fresh
from shown`

var errSnapshot = errors.New("the transaction does not see the record that is in its way")

func (postgres) claim(ctx context.Context, db driver.SQL, n names, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	query := fmt.Sprintf(claimPostgres, n.table)
	for range 3 {
		r, found, fresh := driver.IdempotencyRecord{ID: c.ID}, false, false
		err := db.Query(ctx, query, []any{c.ID.Scope, c.ID.Operation, c.ID.Key, c.Fingerprint, c.Owner, c.Lease.Microseconds(),
			append([]byte{}, c.Input...)}, func(scan func(...any) error) error {
			found = true
			return scanned(&r, scan, &fresh)
		})
		if err != nil || found && (fresh || standsInTheWay(r, c)) {
			return r, err
		}
		// It was made, taken or finished after the statement's snapshot. The next one
		// sees that.
	}
	return driver.IdempotencyRecord{}, &interlock.Error{Op: "claim request", Driver: "postgres", Name: c.ID.Key,
		Kind: interlock.Retryable, Err: errSnapshot}
}

// standsInTheWay tells whether a record explains why a claim did not get it.
func standsInTheWay(r driver.IdempotencyRecord, c driver.IdempotencyClaim) bool {
	return r.Finished || r.Fingerprint != c.Fingerprint || r.Owner != c.Owner && r.Remaining > 0
}

const (
	whosePostgres   = ` where scope = $1::text and operation = $2::text and key = $3::text and owner = $4::text and finished_at is null`
	forgetPostgres  = `delete from %[1]s` + whosePostgres
	advancePostgres = `update %[1]s set lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond', points = coalesce($6::bytea, points)`
	finishPostgres  = advancePostgres + `, finished_at = clock_timestamp(), keep_until = clock_timestamp() + $7::bigint * interval '1 microsecond',
		status = $8::bigint, header = $9::bytea, answer = $10::bytea, digest = $11::text` + whosePostgres
	renewPostgres = advancePostgres + whosePostgres
)

func (postgres) update(ctx context.Context, db driver.SQL, n names, u driver.IdempotencyUpdate) (bool, error) {
	query, args := renewPostgres, []any{u.ID.Scope, u.ID.Operation, u.ID.Key, u.Owner}
	switch {
	case u.Forget:
		query = forgetPostgres
	case u.Answer != nil:
		query = finishPostgres
		args = append(args, u.Lease.Microseconds(), u.Points, u.Keep.Microseconds(), int64(u.Answer.Status),
			append([]byte{}, u.Answer.Header...), append([]byte{}, u.Answer.Body...), u.Answer.Digest)
	default:
		args = append(args, u.Lease.Microseconds(), u.Points)
	}
	affected, err := db.Exec(ctx, fmt.Sprintf(query, n.table), args...)
	return affected > 0, err
}

func (postgres) owned(ctx context.Context, db driver.SQL, n names, id driver.IdempotencyID) (owned, error) {
	return owner(ctx, db, `select owner from `+n.table+` where scope = $1::text and operation = $2::text and key = $3::text for update`, id)
}

var unfinishedPostgres = `
select scope, operation, key, fingerprint, owner, attempt, ` + between("clock_timestamp()", "lease_until") + `,
	` + between("created_at", "clock_timestamp()") + `
from %[1]s
where finished_at is null and lease_until <= statement_timestamp() - ` + microseconds("$1") + `
	and ($2::text = '' or operation = $2::text) and ($3::bigint = 0 or attempt < $3::bigint)
order by lease_until limit $4::bigint`

func (postgres) unfinished(ctx context.Context, db driver.SQL, n names, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error) {
	return listed(ctx, db, fmt.Sprintf(unfinishedPostgres, n.table),
		[]any{q.Lapsed.Microseconds(), q.Operation, int64(q.Attempts), int64(q.Limit)})
}

// removePostgres leaves alone what another reaper removes at the same time.
const removePostgres = `delete from %[1]s where ctid = any(array(
	select ctid from %[1]s where finished_at is not null and keep_until <= statement_timestamp()
	order by keep_until limit $1::bigint for update skip locked))`

func (postgres) remove(ctx context.Context, db driver.SQL, n names, limit int) (int, error) {
	removed, err := db.Exec(ctx, fmt.Sprintf(removePostgres, n.table), int64(limit))
	return int(removed), err
}
