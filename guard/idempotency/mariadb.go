package idempotency

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
)

// mariadb keeps records in MariaDB. Names are compared by their bytes. Empty texts
// go through coalesce: there is a sql_mode that makes them NULL. The time is that
// at which a statement began, so that waiting for a row shortens a lease.
type mariadb struct{}

// create makes it all in one statement, which ends the transaction.
func (mariadb) create(n names) []string {
	return []string{`create table if not exists ` + n.table + ` (
		scope varbinary(255) not null,
		operation varbinary(255) not null,
		request_key varbinary(255) not null,
		fingerprint varbinary(255) not null,
		owner varbinary(255) not null,
		attempt bigint not null,
		lease_until datetime(6) not null,
		created_at datetime(6) not null,
		input longblob not null,
		points longblob not null,
		finished tinyint not null,
		finished_at datetime(6),
		keep_until datetime(6),
		status bigint not null,
		header longblob not null,
		answer longblob not null,
		digest varbinary(255) not null,
		primary key (scope, operation, request_key),
		key ` + n.due + ` (finished, lease_until),
		key ` + n.old + ` (finished, keep_until)) engine = InnoDB`}
}

// takeable tells whether the row in the way is one to take.
const takeable = `finished = 0 and fingerprint = values(fingerprint) and (owner = values(owner) or lease_until <= utc_timestamp(6))`

// claimMaria is one statement. An assignment may see those before it: takeable is
// the same after each of them, since it holds for a row whose owner is the new one.
const claimMaria = `
insert into %[1]s (scope, operation, request_key, fingerprint, owner, attempt, lease_until, created_at,
	input, points, finished, status, header, answer, digest)
values (coalesce(?, x''), ?, ?, ?, ?, 1, utc_timestamp(6) + interval ? microsecond, utc_timestamp(6),
	coalesce(?, x''), x'', 0, 0, x'', x'', x'')
on duplicate key update
	attempt = attempt + if(` + takeable + ` and owner <> values(owner), 1, 0),
	owner = if(` + takeable + `, values(owner), owner),
	lease_until = if(` + takeable + `, values(lease_until), lease_until)
returning fingerprint, owner, attempt, timestampdiff(microsecond, utc_timestamp(6), lease_until),
	timestampdiff(microsecond, created_at, utc_timestamp(6)), finished, status, input, points, header, answer, digest`

func (mariadb) claim(ctx context.Context, db driver.SQL, n names, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	r := driver.IdempotencyRecord{ID: c.ID}
	err := db.Query(ctx, fmt.Sprintf(claimMaria, n.table), []any{c.ID.Scope, c.ID.Operation, c.ID.Key, c.Fingerprint, c.Owner,
		c.Lease.Microseconds(), c.Input}, func(scan func(...any) error) error { return scanned(&r, scan) })
	return r, err
}

const (
	thisMaria    = ` where scope = coalesce(?, x'') and operation = ? and request_key = ?`
	whoseMaria   = thisMaria + ` and owner = ? and finished = 0`
	forgetMaria  = `delete from %[1]s` + whoseMaria
	advanceMaria = `update %[1]s set lease_until = utc_timestamp(6) + interval ? microsecond, points = coalesce(?, points)`
	renewMaria   = advanceMaria + whoseMaria
	finishMaria  = advanceMaria + `, finished_at = utc_timestamp(6), keep_until = utc_timestamp(6) + interval ? microsecond,
		status = ?, header = coalesce(?, x''), answer = coalesce(?, x''), digest = coalesce(?, x''), finished = 1` + whoseMaria
)

func (mariadb) update(ctx context.Context, db driver.SQL, n names, u driver.IdempotencyUpdate) (bool, error) {
	var args []any
	query := renewMaria
	switch {
	case u.Forget:
		query = forgetMaria
	case u.Answer != nil:
		query = finishMaria
		args = []any{u.Lease.Microseconds(), u.Points, u.Keep.Microseconds(), int64(u.Answer.Status),
			u.Answer.Header, u.Answer.Body, u.Answer.Digest}
	default:
		args = []any{u.Lease.Microseconds(), u.Points}
	}
	affected, err := db.Exec(ctx, fmt.Sprintf(query, n.table), append(args, u.ID.Scope, u.ID.Operation, u.ID.Key, u.Owner)...)
	return affected > 0, err
}

func (mariadb) owned(ctx context.Context, db driver.SQL, n names, id driver.IdempotencyID) (owned, error) {
	return owner(ctx, db, `select owner from `+n.table+thisMaria+` for update`, id)
}

const unfinishedMaria = `
select scope, operation, request_key, fingerprint, owner, attempt, timestampdiff(microsecond, utc_timestamp(6), lease_until),
	timestampdiff(microsecond, created_at, utc_timestamp(6))
from %[1]s
where finished = 0 and lease_until <= utc_timestamp(6) - interval ? microsecond
	and (? = 1 or operation = ?) and (? = 0 or attempt < ?)
order by lease_until limit ?`

func (mariadb) unfinished(ctx context.Context, db driver.SQL, n names, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error) {
	anyOperation := 0
	if q.Operation == "" {
		anyOperation = 1
	}
	return listed(ctx, db, fmt.Sprintf(unfinishedMaria, n.table), []any{q.Lapsed.Microseconds(),
		anyOperation, q.Operation, q.Attempts, q.Attempts, q.Limit})
}

func (mariadb) remove(ctx context.Context, db driver.SQL, n names, limit int) (int, error) {
	removed, err := db.Exec(ctx, fmt.Sprintf(`delete from %[1]s where finished = 1 and keep_until <= utc_timestamp(6)
		order by keep_until limit ?`, n.table), limit)
	return int(removed), err
}
