package idempotency

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// dialect is how a database keeps records. Its methods return the errors of the
// database as they are.
type dialect interface {
	// create is the statements that make the table.
	create(n names) []string
	// claim is the Claim of driver.Idempotency.
	claim(ctx context.Context, db driver.SQL, n names, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error)
	// update does what u says if u.Owner owns a record that is not finished, and
	// holds its row then. done is false if it does not, or if nothing was changed.
	update(ctx context.Context, db driver.SQL, n names, u driver.IdempotencyUpdate) (done bool, err error)
	// owned tells whose a record is, past every snapshot.
	owned(ctx context.Context, db driver.SQL, n names, id driver.IdempotencyID) (is owned, err error)
	// unfinished lists.
	unfinished(ctx context.Context, db driver.SQL, n names, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error)
	// remove removes finished records whose time has passed.
	remove(ctx context.Context, db driver.SQL, n names, limit int) (int, error)
}

// owned is whose a record is, if it is there.
type owned struct {
	there bool
	owner string
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// scanned reads a record from a row of the columns that both dialects show: times
// in microseconds, attempt as a number.
func scanned(r *driver.IdempotencyRecord, scan func(...any) error, more ...any) error {
	var attempt, status, remaining, age int64
	dest := append([]any{&r.Fingerprint, &r.Owner, &attempt, &remaining, &age, &r.Finished, &status,
		&r.Input, &r.Points, &r.Answer.Header, &r.Answer.Body, &r.Answer.Digest}, more...)
	err := scan(dest...)
	r.Attempt, r.Answer.Status = int(attempt), int(status)
	r.Remaining, r.Age = time.Duration(remaining)*time.Microsecond, time.Duration(age)*time.Microsecond
	return err
}

// listed runs a query of unfinished records.
func listed(ctx context.Context, db driver.SQL, query string, args []any) (found []driver.IdempotencyRecord, err error) {
	err = db.Query(ctx, query, args, func(scan func(...any) error) error {
		var r driver.IdempotencyRecord
		var attempt, remaining, age int64
		err := scan(&r.ID.Scope, &r.ID.Operation, &r.ID.Key, &r.Fingerprint, &r.Owner, &attempt, &remaining, &age)
		r.Attempt, r.Remaining, r.Age = int(attempt), time.Duration(remaining)*time.Microsecond, time.Duration(age)*time.Microsecond
		found = append(found, r)
		return err
	})
	return found, err
}

// owner runs a query of an owner.
func owner(ctx context.Context, db driver.SQL, query string, id driver.IdempotencyID) (is owned, err error) {
	err = db.Query(ctx, query, []any{id.Scope, id.Operation, id.Key}, func(scan func(...any) error) error {
		is.there = true
		return scan(&is.owner)
	})
	return is, err
}
