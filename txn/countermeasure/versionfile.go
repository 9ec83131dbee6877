package countermeasure

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/txn/branch"
)

// VersionFile is a log of operations on records. Each is applied once, reversed once, and never
// applied if its cancellation came first. VersionFile does not execute operations: it tells the
// transaction that does whether to. Transactions that log operations on one record wait for each
// other, so the log has the order in which operations take effect. A state that cannot be
// reversed directly can be recomputed from the operations that remain ([VersionFile.Standing]).
//
// The zero value is ready once [VersionFile.Create] has created the tables. It is safe for
// concurrent use, with one transaction for each call.
type VersionFile struct {
	// Name is the table of the log, or schema.table; empty means
	// "interlock_version_file". A second one has "_record" at the end. It is at most 56
	// bytes, and trusted: never take it from a request.
	Name string
}

// An Operation is one on a record.
type Operation struct {
	Record string // such as "seat/12A": 1 to driver.MaxName bytes
	// ID identifies the operation and its cancellation, and no other operation on the record: 1
	// to driver.MaxName bytes. See [OperationID].
	ID string
	// Data describes the operation for its reversal and for a replay, in at most
	// driver.MaxValue bytes. A repeated operation must have the same. Cancel ignores it.
	Data []byte
}

// OperationID returns the ID of a call, which is also that of its undo. A long ID ends in a hash.
func OperationID(c branch.Call) string {
	return short(strings.TrimSuffix(c.Key(), "/"+string(c.Operation)))
}

// short returns a name of at most driver.MaxName bytes, different for each name.
func short(name string) string {
	sum := sha256.Sum256([]byte(name))
	if end := "#" + hex.EncodeToString(sum[:]); len(name) > driver.MaxName {
		return strings.ToValidUTF8(name[:driver.MaxName-len(end)], "") + end
	}
	return name
}

func (o Operation) check(op string) error {
	if err := driver.CheckName(op, "a record", o.Record, driver.MaxName); err != nil {
		return err
	}
	if err := driver.CheckName(op, "an operation", o.ID, driver.MaxName); err != nil {
		return err
	}
	if len(o.Data) > driver.MaxValue {
		return failure.Bug(op, o.Record, "%d bytes of data: an operation has at most %d", len(o.Data), driver.MaxValue)
	}
	return nil
}

// A Verdict is the required action for an operation.
type Verdict int

// The verdicts.
const (
	// Apply means: do it now, in this transaction.
	Apply Verdict = iota + 1
	// Reverse means: undo it now, in this transaction.
	Reverse
	// Repeated means that it was already done, or cancelled: do nothing.
	Repeated
	// Cancelled means that its cancellation arrived first: do nothing.
	Cancelled
	// Pending means that it has not arrived, and will be Cancelled: do nothing.
	Pending
	// Refused means that it was refused ([VersionFile.Refuse]): refuse it again.
	Refused
)

// String returns the verdict in lower case.
func (v Verdict) String() string {
	names := [...]string{"", "apply", "reverse", "repeated", "cancelled", "pending", "refused"}
	if v < Apply || v > Refused {
		return fmt.Sprintf("verdict %d", int(v))
	}
	return names[v]
}

// A ReusedError reports that an operation with this ID was logged with other data. Nothing was
// done. It is Definite.
type ReusedError struct {
	Record, ID string
}

// Error names the record and the operation.
func (e *ReusedError) Error() string {
	return fmt.Sprintf("the operation %q on %q was logged with other data", e.ID, e.Record)
}

// ErrorKind returns [interlock.Definite].
func (e *ReusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Log logs an operation, and returns whether to do it: Apply, Repeated, Cancelled or Refused. If the
// transaction cannot do it now, roll back: nothing is logged, and the operation can be repeated. If it
// refuses by branch.Fail, call Refuse and commit: otherwise a repeated call might succeed, which no saga
// would undo. Errors are a [ReusedError] and those of the database, with their kind. Log waits for
// transactions that have logged on the same record. It costs one statement on PostgreSQL and two on
// MariaDB.
func (v VersionFile) Log(ctx context.Context, db driver.SQL, o Operation) (Verdict, error) {
	const op = "log operation"
	if err := o.check(op); err != nil {
		return 0, err
	}
	l, err := v.log(op, o.Record, db)
	if err != nil {
		return 0, err
	}
	was, data, err := l.add(ctx, o, standing)
	switch {
	case err != nil:
		return 0, err
	case was == absent:
		return Apply, nil
	case was == cancelled && len(data) == 0:
		return Cancelled, nil
	case string(data) != string(o.Data):
		return 0, &ReusedError{Record: o.Record, ID: o.ID}
	case was == standing:
		return Repeated, nil
	case was == refused:
		return Refused, nil
	}
	return Cancelled, nil
}

// Refuse records that an operation with the verdict Apply was refused: it is neither done nor undone. If
// it is not logged, or is cancelled, that is a Bug. It costs one statement.
func (v VersionFile) Refuse(ctx context.Context, db driver.SQL, record, id string) error {
	const op = "refuse operation"
	if err := (Operation{Record: record, ID: id}).check(op); err != nil {
		return err
	}
	l, err := v.log(op, record, db)
	if err != nil {
		return err
	}
	return l.refuse(ctx, record, id)
}

// Cancel returns whether to undo an operation: Reverse, with its logged data; Repeated, also if it was
// refused; or Pending if it has not arrived: it then gets the verdict Cancelled. Costs and errors are
// those of Log.
func (v VersionFile) Cancel(ctx context.Context, db driver.SQL, record, id string) (Verdict, []byte, error) {
	const op = "cancel operation"
	o := Operation{Record: record, ID: id}
	if err := o.check(op); err != nil {
		return 0, nil, err
	}
	l, err := v.log(op, record, db)
	if err != nil {
		return 0, nil, err
	}
	was, data, err := l.add(ctx, o, cancelled)
	switch {
	case err != nil:
		return 0, nil, err
	case was == absent:
		return Pending, nil, nil
	case was == standing:
		return Reverse, data, nil
	}
	return Repeated, nil, nil
}

// Standing returns the operations on a record that were logged and not cancelled, in the order of their
// logging. After Log or Cancel in the same transaction the result is complete and stays so until the
// transaction ends; otherwise it has the committed operations.
func (v VersionFile) Standing(ctx context.Context, db driver.SQL, record string) (all []Operation, err error) {
	const op = "read operations"
	if err := driver.CheckName(op, "a record", record, driver.MaxName); err != nil {
		return nil, err
	}
	l, err := v.log(op, record, db)
	if err != nil {
		return nil, err
	}
	return l.standing(ctx, record)
}

// Create creates the tables, unless they exist. Several processes may call it at once. It takes effect
// when the transaction commits; on MariaDB it takes effect at once, and commits the statements before it.
func (v VersionFile) Create(ctx context.Context, db driver.SQL) error {
	l, err := v.log("create version file", "", db)
	if err != nil {
		return err
	}
	return l.create(ctx)
}

func (v VersionFile) log(op, record string, db driver.SQL) (oplog, error) {
	t, err := logTables.Open(op, record, db, v.Name)
	return oplog{t}, err
}

// oplog has the tables of a [VersionFile]: a row for each operation, and one for each record, which is
// locked before any of its operations and numbers them. Numbers may
// have gaps.
type oplog struct{ sqltable.Tables }

var logTables = sqltable.Layout{Default: "interlock_version_file",
	Tables: map[string]string{"log": "", "records": "_record"}, Indexes: map[string]string{"by_time": "_time"}}

// States of an operation. Column was has the state before the last statement, and column state the one
// after it, so that one statement can write and return both.
const (
	absent    = "absent"
	standing  = "standing"
	cancelled = "cancelled"
	refused   = "refused"
)

// final has the states that an operation does not leave.
const final = `('` + cancelled + `', '` + refused + `')`

func (l oplog) create(ctx context.Context) error {
	return l.Create(ctx,
		`create table if not exists {records} (
			record {name 512} not null primary key,
			last bigint not null){maria  engine = InnoDB}`,
		`create table if not exists {log} (
			record {name 512} not null,
			position bigint not null,
			operation {name 512} not null,
			data {bytes} not null,
			was {word 16} not null,
			state {word 16} not null,
			logged_at {time} not null,{maria
			index (logged_at),}
			primary key (record, position),
			unique (record, operation)){maria  engine = InnoDB}`,
		`{pg create index if not exists {by_time} on {log} (logged_at)}`)
}

// add logs an operation with a state, and returns its former state and the data of its first log. A
// cancelled or refused operation keeps its state.
func (l oplog) add(ctx context.Context, o Operation, state string) (was string, data []byte, err error) {
	if l.Maria() {
		return l.addMaria(ctx, o, state)
	}
	_, err = l.Row(ctx, `
		with next as (
			insert into {records} as r (record, last) values (?, 1)
			on conflict (record) do update set last = r.last + 1 returning record, last)
		insert into {log} as l (record, position, operation, data, was, state, logged_at)
		select record, last, ?::text, coalesce(?::bytea, ''), '`+absent+`', ?::text, {now} from next
		on conflict (record, operation) do update set logged_at = excluded.logged_at,
			was = l.state, state = case when l.state in `+final+` then l.state else excluded.state end
		returning was, data`, []any{o.Record, o.ID, o.Data, state}, &was, &data)
	return was, data, err
}

// addMaria assigns state last, because an assignment may see the earlier ones.
func (l oplog) addMaria(ctx context.Context, o Operation, state string) (was string, data []byte, err error) {
	var position int64
	_, err = l.Row(ctx, `insert into {records} (record, last) values (?, 1)
		on duplicate key update last = last + 1 returning last`, []any{o.Record}, &position)
	if err != nil {
		return "", nil, err
	}
	_, err = l.Row(ctx, `insert into {log} (record, position, operation, data, was, state, logged_at)
		values (?, ?, ?, {?}, '`+absent+`', ?, {now})
		on duplicate key update logged_at = values(logged_at), was = state, state = if(state in `+final+`, state, values(state))
		returning was, data`, []any{o.Record, position, o.ID, o.Data, state}, &was, &data)
	return was, data, err
}

// refuse changes a standing operation to a refused one.
func (l oplog) refuse(ctx context.Context, record, id string) error {
	n, err := l.Exec(ctx, `update {log} set state = '`+refused+`' where record = ? and operation = ? and state = '`+standing+`'`, record, id)
	if err == nil && n != 1 {
		err = l.Bug("the operation %q is not in the log", id)
	}
	return err
}

// standing reads the latest committed operations. On MariaDB it uses a locking read, because others
// read a snapshot, and the primary key, so that it locks no rows of other records.
func (l oplog) standing(ctx context.Context, record string) ([]Operation, error) {
	return sqltable.List(ctx, l.Tables, `select operation, data from {log} {maria force index (primary)}
		where record = ? and state = '`+standing+`' order by position {maria lock in share mode}`,
		[]any{record}, func(o *Operation) []any { o.Record = record; return []any{&o.ID, &o.Data} })
}
