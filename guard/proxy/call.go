package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// A Call is one attempt to make a call.
type Call struct {
	Resource  string
	Operation string // empty if the call changes nothing
	Key       string // the idempotency key; empty if there is no operation
	Token     interlock.Token

	ready   func() error
	mu      sync.Mutex
	granted bool // Ready has permitted the sending
	over    bool // the Send has returned: nothing may be sent
}

// Ready returns an error if the call must not be sent any more. That is so if the claim has
// ended, the session that holds the mark may have ended, or the [Send] has returned. It does
// not block. Call it as late as possible; [Transport] calls it before each write. Once it has
// returned nil, the call counts as sent.
func (c *Call) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return &interlock.Error{Op: "make call", Name: c.Resource, Kind: interlock.Definite, Err: errors.New("its deadline has passed")}
	}
	if err := c.ready(); err != nil {
		return err
	}
	c.granted = true
	return nil
}

// sent reports whether the call may have been sent. If end is set, nothing may be sent
// afterwards.
func (c *Call) sent(end bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = c.over || end
	return c.granted
}

// outcome makes the error of a [Send] Uncertain, unless certainly nothing was sent. ctx is the
// context of the Send.
func (c *Call) outcome(ctx context.Context, err error) error {
	if sent := c.sent(true); err == nil || !sent && denies(ctx, err) {
		return err
	}
	if errors.Is(err, interlock.ErrUncertain) && interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: "make call", Name: c.Resource, Kind: interlock.Uncertain, Err: err}
}

// denies reports whether err states by its own kind that nothing was sent. The error of a
// context has no kind. The cause with which ctx ended may have a kind that concerns something
// else, because clients return the cause unchanged, whatever they have sent.
func denies(ctx context.Context, err error) bool {
	var kind interface {
		error
		ErrorKind() interlock.ErrorKind
	}
	return errors.As(err, &kind) && kind.ErrorKind() != interlock.Uncertain && !errors.Is(context.Cause(ctx), kind)
}

// Send makes a call and returns the HTTP status of the answer, or an error. If the error has a
// kind, as [interlock.Error] does, that is not Uncertain, the call was certainly not sent,
// unless [Call.Ready] returned nil. After any other error, such as that of a context or its
// cause, the call may have been sent. Send must return when ctx ends: ctx ends with the claim,
// and when the mark is no longer held.
type Send func(ctx context.Context, call *Call) (status int, err error)

// Key returns the idempotency key of an operation on a resource: 64 hexadecimal digits. It
// never changes and does not depend on the claim.
func Key(resource, operation string) string {
	sum := sha256.Sum256([]byte("interlock call\x00" + resource + "\x00" + operation))
	return hex.EncodeToString(sum[:])
}

type callKey struct{}

func withCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

func callOf(ctx context.Context) (*Call, bool) {
	c, ok := ctx.Value(callKey{}).(*Call)
	return c, ok
}

// Calls is the table in which calls are recorded. The zero value is ready once [Calls.Create]
// has created the table. A record stays until [Calls.Clean] removes it. As long as it exists, a
// call without an idempotency key is not sent twice.
type Calls struct {
	// Name is the table, or schema.table; empty means "interlock_call". It is
	// trusted: never take it from a request.
	Name string
}

// A Record is the stored state of a call.
type Record struct {
	Token    interlock.Token // of the last attempt; 0 without attempts
	Attempts int64           // number of attempts that were or may have been sent
	Status   int             // of the last answer; 0 without an answer
	Settled  bool            // the outcome is known
	Called   time.Time       // when the first attempt began, by the database's clock
}

// The id of a row is its [Key], which has a fixed length and no collation. resource and
// operation are for people.
var layout = sqltable.Layout{Part: "proxy", Default: "interlock_call", Tables: map[string]string{"calls": ""},
	Indexes: map[string]string{"settled": "_settled"}}

// Create creates the table, unless it exists. Several processes may call it concurrently. On
// MariaDB it commits what the transaction did before.
func (t Calls) Create(ctx context.Context, db driver.SQL) error {
	tables, err := layout.Open("create table", "", db, t.Name)
	if err != nil {
		return err
	}
	return tables.Create(ctx, `create table if not exists {calls} (
			id {string 64} primary key,
			resource {string 512} not null,
			operation {string 255} not null,
			token bigint not null,
			attempts bigint not null,
			status bigint not null,
			called_at {time} not null,
			settled_at {time}){maria  engine = InnoDB}`,
		`create index if not exists {settled} on {calls} (settled_at){pg  where settled_at is not null}`)
}

// begin counts an attempt. Apart from the count, the returned record is the previous one.
func (t Calls) begin(ctx context.Context, db driver.SQL, c *Call) (number int64, r Record, err error) {
	tables, err := layout.Open("record call", c.Operation, db, t.Name)
	if err != nil {
		return 0, r, err
	}
	var called int64
	_, err = tables.Row(ctx, `
insert into {calls} {as present} (id, resource, operation, token, attempts, status, called_at) values (?, ?, ?, ?, 1, 0, {now})
{or id} attempts = {old attempts} + 1, token = {new token}
returning attempts, status, settled_at is not null, {micros called_at}`,
		[]any{c.Key, c.Resource, c.Operation, int64(c.Token)}, &number, &r.Status, &r.Settled, &called)
	r.Called = time.UnixMicro(called).UTC()
	return number, r, err
}

// Show returns the record of a call. If the call was never made, the record has no attempts.
func (t Calls) Show(ctx context.Context, db driver.SQL, resource, operation string) (r Record, err error) {
	tables, err := layout.Open("show call", operation, db, t.Name)
	if err != nil {
		return r, err
	}
	var called int64
	found, err := tables.Row(ctx, `select token, attempts, status, settled_at is not null, {micros called_at} from {calls} where id = ?`,
		[]any{Key(resource, operation)}, (*int64)(&r.Token), &r.Attempts, &r.Status, &r.Settled, &called)
	if found {
		r.Called = time.UnixMicro(called).UTC()
	}
	return r, err
}

// answered records the status of an attempt that leaves the call in doubt. If another attempt
// has begun since, it changes nothing.
func (t Calls) answered(ctx context.Context, db driver.SQL, c *Call, number int64, status int) error {
	return t.exec(ctx, db, "record call",
		`update {calls} set status = ? where id = ? and attempts = ? and token = ? and settled_at is null`, int64(status), c.Key, number, int64(c.Token))
}

// settled records the final status of a call, unless there is one.
func (t Calls) settled(ctx context.Context, db driver.SQL, op, key string, status int) error {
	return t.exec(ctx, db, op, `update {calls} set status = ?, settled_at = {now} where id = ? and settled_at is null`, int64(status), key)
}

// withdraw removes the first attempt that began exactly at called, if no other followed. The
// time matters because another process may have inserted its own attempt under the same claim.
func (t Calls) withdraw(ctx context.Context, db driver.SQL, c *Call, called time.Time) error {
	return t.exec(ctx, db, "withdraw call",
		`delete from {calls} where id = ? and token = ? and attempts = 1 and status = 0 and settled_at is null and {micros called_at} = ?`,
		c.Key, int64(c.Token), called.UnixMicro())
}

// uncount takes an attempt after the first out of the count, if no other followed.
func (t Calls) uncount(ctx context.Context, db driver.SQL, c *Call, number int64) error {
	return t.exec(ctx, db, "withdraw call", `update {calls} set attempts = attempts - 1 where id = ? and attempts = ? and token = ? and settled_at is null`,
		c.Key, number, int64(c.Token))
}

// Settle resolves a doubt by a result that the caller has found out. A status from 200 to 499
// means that the call was made, with that status. Status 0 means that it was not made and may
// be sent. If the call is settled, Settle does nothing.
func (t Calls) Settle(ctx context.Context, db driver.SQL, resource, operation string, status int) error {
	switch key := Key(resource, operation); {
	case status == 0:
		return t.exec(ctx, db, "settle call", `delete from {calls} where id = ? and settled_at is null`, key)
	case status >= 200 && status < 500:
		return t.settled(ctx, db, "settle call", key, status)
	}
	return failure.Bug("settle call", operation, "status %d settles nothing", status)
}

// cleaned is the number of records that Clean removes at once.
const cleaned = 1000

// Clean removes the records of calls that were settled longer than age ago, by the database's
// clock. After that these calls would be sent again. It keeps records of calls in doubt.
func (t Calls) Clean(ctx context.Context, db driver.SQL, age time.Duration) error {
	if age < 0 {
		return failure.Bug("clean calls", "", "an age of %v is in the future", age)
	}
	tables, err := layout.Open("clean calls", "", db, t.Name)
	for deleted := int64(cleaned); err == nil && deleted == cleaned; {
		deleted, err = tables.Delete(ctx, sqltable.Deletion{Table: "calls", Key: "id", Where: `settled_at < {start} - {span}`,
			Args: []any{age.Microseconds()}, Limit: cleaned})
	}
	return err
}

func (t Calls) exec(ctx context.Context, db driver.SQL, op, query string, args ...any) error {
	tables, err := layout.Open(op, "", db, t.Name)
	if err == nil {
		_, err = tables.Exec(ctx, query, args...)
	}
	return err
}

// A DoneError means that the call was made before and answered. It was not sent again. It is
// Definite.
type DoneError struct {
	Resource, Operation string
	Status              int // of the answer
}

// Error returns a message with the call and the status of its answer.
func (e *DoneError) Error() string {
	return fmt.Sprintf("call %q of %q: it was made before and answered with status %d", e.Operation, e.Resource, e.Status)
}

// done returns the error of a call with the record r.
func (c *Call) done(r Record) error {
	return &DoneError{Resource: c.Resource, Operation: c.Operation, Status: r.Status}
}

// ErrorKind returns [interlock.Definite].
func (e *DoneError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// An InDoubtError means that an earlier attempt may have sent the call, without an answer that
// settled it. The call was not sent again. The error is Uncertain until [Calls.Settle] records
// the result.
type InDoubtError struct {
	Resource, Operation string
	Status              int // of the last answer, such as 503; 0 without an answer
}

// Error returns a message with the call.
func (e *InDoubtError) Error() string {
	return fmt.Sprintf("call %q of %q: an earlier attempt may have been made (last status %d), and is not repeated without an idempotency key",
		e.Operation, e.Resource, e.Status)
}

// ErrorKind returns [interlock.Uncertain].
func (e *InDoubtError) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// Unwrap returns [interlock.ErrUncertain].
func (e *InDoubtError) Unwrap() error { return interlock.ErrUncertain }

// unsent returns the error of a call that was certainly not sent. If err is Uncertain, the
// doubt concerns only the mark or the record, so the call is Retryable.
func unsent(err error) error {
	if _, found := errors.AsType[*InDoubtError](err); err == nil || found || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return notSent("make call", err)
}

// notSent returns a Retryable error that states that nothing was sent.
func notSent(op string, err error) error {
	return &interlock.Error{Op: op, Kind: interlock.Retryable, Err: fmt.Errorf("it was not sent: %w", plain{err})}
}

// plain hides only that an error is an ErrUncertain.
type plain struct{ err error }

func (p plain) Error() string { return p.err.Error() }

func (p plain) Is(target error) bool {
	return target != interlock.ErrUncertain && errors.Is(p.err, target)
}

func (p plain) As(target any) bool { return errors.As(p.err, target) }
