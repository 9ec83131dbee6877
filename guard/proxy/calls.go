package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// Calls is the table in which calls are recorded. The zero value is ready once
// [Calls.Create] made the table. A record stays until [Calls.Clean] removes it;
// as long as it is there its call is not made twice without a key.
type Calls struct {
	// Name is the table, or schema.table; empty means "interlock_call". It is
	// trusted: never take it from a request.
	Name string
}

// A Record is what is known of a call.
type Record struct {
	Token    interlock.Token // of the last attempt; 0 if there was none
	Attempts int64           // that were, or may have been, sent
	Status   int             // of the last answer; 0 if there was none
	Settled  bool            // the answer says what the outcome is
	Called   time.Time       // when the first attempt began, by the database's clock
}

// dialect is the SQL of one database; %s is the table.
type dialect struct {
	create                                                 []string
	begin, show, answered, withdraw, settle, remove, clean string
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres, driver.MariaDB: mariadb}

// speak finds the SQL for db, and the table's name as it is written there.
func (t Calls) speak(op string, db driver.SQL) (d dialect, table string, err error) {
	d, ok := dialects[db.Dialect()]
	if !ok {
		return d, "", failure.Bug(op, "", "SQL of %q is not spoken", string(db.Dialect()))
	}
	if t.Name == "" {
		t.Name = "interlock_call"
	}
	table, err = sqltext.Identifier(db.Dialect(), t.Name, "")
	return d, table, err
}

// Create makes the table, unless it exists. Several processes may do it at once.
// On MariaDB it commits what was done in the transaction before.
func (t Calls) Create(ctx context.Context, db driver.SQL) error {
	d, table, err := t.speak("create table", db)
	if err != nil {
		return err
	}
	for _, query := range d.create {
		if _, err := db.Exec(ctx, named(query, table)); err != nil {
			return err
		}
	}
	return nil
}

// named puts the table's name where it belongs, if it does anywhere.
func named(query, table string) string { return fmt.Sprintf(query+"%.0[1]s", table) }

// begin counts an attempt; the record is that of before, but for the count.
func (t Calls) begin(ctx context.Context, db driver.SQL, c *Call) (number int64, r Record, err error) {
	d, table, err := t.speak("record call", db)
	if err != nil {
		return 0, r, err
	}
	err = db.Query(ctx, named(d.begin, table), []any{c.Key, c.Resource, c.Operation, int64(c.Token)},
		func(scan func(...any) error) error {
			var called int64
			err := scan(&number, &r.Status, &r.Settled, &called)
			r.Called = at(called)
			return err
		})
	return number, r, missing(err)
}

// Show tells what is known of a call; one that was never made has no attempts.
func (t Calls) Show(ctx context.Context, db driver.SQL, resource, operation string) (r Record, err error) {
	d, table, err := t.speak("show call", db)
	if err != nil {
		return r, err
	}
	err = db.Query(ctx, named(d.show, table), []any{Key(resource, operation)}, func(scan func(...any) error) error {
		var called int64
		err := scan((*int64)(&r.Token), &r.Attempts, &r.Status, &r.Settled, &called)
		r.Called = at(called)
		return err
	})
	return r, missing(err)
}

// at is a time as the dialects show it: in microseconds since 1970.
func at(micro int64) time.Time { return time.UnixMicro(micro).UTC() }

// answered records the status of an attempt that leaves the call in doubt. It is
// of no interest once another attempt was begun.
func (t Calls) answered(ctx context.Context, db driver.SQL, c *Call, number int64, status int) error {
	return t.exec(ctx, db, "record call", func(d dialect) string { return d.answered }, int64(status), c.Key, number, int64(c.Token))
}

// settled records the status that ended a call, unless one is there.
func (t Calls) settled(ctx context.Context, db driver.SQL, op, key string, status int) error {
	return t.exec(ctx, db, op, func(d dialect) string { return d.settle }, int64(status), key)
}

// withdraw removes the first attempt that began just when called says, if no other
// followed: if it was never committed, there may be one of somebody else under the
// same claim in its place.
func (t Calls) withdraw(ctx context.Context, db driver.SQL, c *Call, called time.Time) error {
	return t.exec(ctx, db, "withdraw call", func(d dialect) string { return d.withdraw }, c.Key, int64(c.Token), called.UnixMicro())
}

// Settle ends a doubt by what somebody found out: the call was made, with that
// status, from 200 to 499; or, with status 0, it was not, and may be made. It does
// nothing to a call that is settled.
func (t Calls) Settle(ctx context.Context, db driver.SQL, resource, operation string, status int) error {
	switch key := Key(resource, operation); {
	case status == 0:
		return t.exec(ctx, db, "settle call", func(d dialect) string { return d.remove }, key)
	case status >= 200 && status < 500:
		return t.settled(ctx, db, "settle call", key, status)
	}
	return failure.Bug("settle call", operation, "status %d settles nothing", status)
}

// Clean removes the records of calls that were settled longer than age ago, by
// the database's clock: from then on they would be made again. It removes nothing
// that is in doubt.
func (t Calls) Clean(ctx context.Context, db driver.SQL, age time.Duration) error {
	if age < 0 {
		return failure.Bug("clean calls", "", "an age of %v lies ahead", age)
	}
	return t.exec(ctx, db, "clean calls", func(d dialect) string { return d.clean }, age.Microseconds())
}

func (t Calls) exec(ctx context.Context, db driver.SQL, op string, query func(dialect) string, args ...any) error {
	d, table, err := t.speak(op, db)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, named(query(d), table), args...)
	return missing(err)
}

// missing is the error of a statement on the table.
func missing(err error) error { return failure.Table("record call", "", "proxy", err) }
