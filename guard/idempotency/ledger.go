package idempotency

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// ledger is the table in one transaction. On MariaDB names are compared by their bytes. The
// time there is the start of the statement, so waiting for a row shortens a lease.
type ledger struct{ sqltable.Tables }

const (
	key        = `{pg key}{maria request_key}`
	isFinished = `{pg finished_at is not null}{maria finished = 1}`
	unfinished = `{pg finished_at is null}{maria finished = 0}`
	isRow      = ` where scope = {?} and operation = ? and ` + key + ` = ?`
	isOwned    = isRow + ` and owner = ? and ` + unfinished
	attempted  = `fingerprint, owner, attempt, {micros lease_until} - {micros now}, {micros now} - {micros created_at}`
	shown      = attempted + `, ` + isFinished + `, status, input, points, header, answer, digest`
)

// claimPostgres is one statement. If a record cannot be claimed, it is read from the
// statement's snapshot, without writing a version of the row. The snapshot may be older than
// the record that blocked the claim; the last column shows that.
const claimPostgres = `
with claimed as (
	insert into {requests} as r (scope, operation, key, fingerprint, owner, attempt, lease_until, created_at,
		input, points, status, header, answer, digest)
	values (?, ?, ?, ?, ?, 1, {now} + {span}, {now}, ?, '', 0, '', '', '')
	on conflict (scope, operation, key) do update set
		attempt = r.attempt + case when r.owner = excluded.owner then 0 else 1 end,
		owner = excluded.owner,
		lease_until = {now} + {span}
	where r.finished_at is null and r.fingerprint = excluded.fingerprint
		and (r.owner = excluded.owner or r.lease_until <= {now})
	returning r.*),
present as (
	select *, true as fresh from claimed
	union all
	select *, false from {requests}` + isRow + ` and not exists (select from claimed))
select ` + shown + `, fresh from present`

// takeable is the condition for taking over the existing row.
const takeable = `finished = 0 and fingerprint = values(fingerprint) and (owner = values(owner) or lease_until <= {now})`

// claimMaria is one statement. An assignment may see those before it. takeable has the same
// value after each of them, because it holds for a row whose owner is the new one.
const claimMaria = `
insert into {requests} (scope, operation, request_key, fingerprint, owner, attempt, lease_until, created_at,
	input, points, finished, status, header, answer, digest)
values ({?}, ?, ?, ?, ?, 1, {now} + {span}, {now}, {?}, x'', 0, 0, x'', x'', x'')
on duplicate key update
	attempt = attempt + if(` + takeable + ` and owner <> values(owner), 1, 0),
	owner = if(` + takeable + `, values(owner), owner),
	lease_until = if(` + takeable + `, values(lease_until), lease_until)
returning ` + shown

var errSnapshot = errors.New("the transaction's snapshot does not show the conflicting record")

// claim implements Claim of driver.Idempotency.
func (l ledger) claim(ctx context.Context, c driver.IdempotencyClaim) (r driver.IdempotencyRecord, err error) {
	r.ID = c.ID
	id := []any{c.ID.Scope, c.ID.Operation, c.ID.Key}
	args := append(slices.Clone(id), c.Fingerprint, c.Owner, c.Lease.Microseconds(), filled(c.Input))
	if l.Maria() {
		_, err = l.read(ctx, claimMaria, args, &r)
		return r, err
	}
	args = append(append(args, c.Lease.Microseconds()), id...)
	for range 3 {
		fresh := false
		found, err := l.read(ctx, claimPostgres, args, &r, &fresh)
		if err != nil || found && (fresh || conflicts(r, c)) {
			return r, err
		}
		// The record was inserted, claimed or finished after the statement's snapshot. The next
		// statement sees that.
	}
	return driver.IdempotencyRecord{}, &interlock.Error{Op: "claim request", Driver: "postgres", Name: c.ID.Key,
		Kind: interlock.Retryable, Err: errSnapshot}
}

// read reads a record by a query of the columns shown and of more.
func (l ledger) read(ctx context.Context, query string, args []any, r *driver.IdempotencyRecord, more ...any) (found bool, err error) {
	found, err = l.Row(ctx, query, args, append(attemptOf(r), append([]any{&r.Finished, &r.Answer.Status,
		&r.Input, &r.Points, &r.Answer.Header, &r.Answer.Body, &r.Answer.Digest}, more...)...)...)
	inMicroseconds(r)
	return found, err
}

// attemptOf returns pointers to the fields of the columns attempted.
func attemptOf(r *driver.IdempotencyRecord) []any {
	return []any{&r.Fingerprint, &r.Owner, &r.Attempt, (*int64)(&r.Remaining), (*int64)(&r.Age)}
}

// inMicroseconds converts the times of a record that were read as numbers of microseconds.
func inMicroseconds(r *driver.IdempotencyRecord) {
	r.Remaining *= time.Microsecond
	r.Age *= time.Microsecond
}

// conflicts reports whether a record explains why a claim did not get it.
func conflicts(r driver.IdempotencyRecord, c driver.IdempotencyClaim) bool {
	return r.Finished || r.Fingerprint != c.Fingerprint || r.Owner != c.Owner && r.Remaining > 0
}

// update applies u, and locks the row, if u.Owner owns an unfinished record. If the owner
// differs, or nothing was changed, done is false.
func (l ledger) update(ctx context.Context, u driver.IdempotencyUpdate) (done bool, err error) {
	query, args := `delete from {requests}`, []any{}
	if !u.Forget {
		query = `update {requests} set lease_until = {now} + {span}, points = coalesce(?, points)`
		args = append(args, u.Lease.Microseconds(), u.Points)
	}
	if a := u.Answer; a != nil && !u.Forget {
		query += `, finished_at = {now}, keep_until = {now} + {span}, status = ?, header = {?}, answer = {?}, digest = {?}{maria , finished = 1}`
		args = append(args, u.Keep.Microseconds(), int64(a.Status), filled(a.Header), filled(a.Body), a.Digest)
	}
	affected, err := l.Exec(ctx, query+isOwned, append(args, u.ID.Scope, u.ID.Operation, u.ID.Key, u.Owner)...)
	return affected > 0, err
}

// filled returns a slice that is not nil, because nil would be NULL.
func filled(b []byte) []byte { return append([]byte{}, b...) }

// owner returns the owner of a record by a locking read, whatever the transaction's snapshot.
func (l ledger) owner(ctx context.Context, id driver.IdempotencyID) (owner string, found bool, err error) {
	found, err = l.Row(ctx, `select owner from {requests}`+isRow+` for update`, []any{id.Scope, id.Operation, id.Key}, &owner)
	return owner, found, err
}

// list implements Unfinished of driver.Idempotency.
func (l ledger) list(ctx context.Context, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error) {
	where, args := unfinished+` and lease_until <= {start} - {span}`, []any{q.Lapsed.Microseconds()}
	if q.Operation != "" {
		where, args = where+` and operation = ?`, append(args, q.Operation)
	}
	if q.Attempts != 0 {
		where, args = where+` and attempt < ?`, append(args, int64(q.Attempts))
	}
	all, err := sqltable.List(ctx, l.Tables, `select scope, operation, `+key+`, `+attempted+` from {requests} where `+where+` order by lease_until limit ?`,
		append(args, int64(q.Limit)), func(r *driver.IdempotencyRecord) []any {
			return append([]any{&r.ID.Scope, &r.ID.Operation, &r.ID.Key}, attemptOf(r)...)
		})
	for i := range all {
		inMicroseconds(&all[i])
	}
	return all, err
}

// remove removes finished records whose retention has passed.
func (l ledger) remove(ctx context.Context, limit int) (int, error) {
	n, err := l.Delete(ctx, sqltable.Deletion{Table: "requests", Key: "scope, operation, " + key,
		Where: isFinished + ` and keep_until <= {start}`, Order: "keep_until", Limit: limit})
	return int(n), err
}
