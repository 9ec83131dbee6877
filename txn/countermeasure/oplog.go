package countermeasure

import (
	"context"

	"github.com/interlock-dev/interlock/internal/sqltable"
)

// oplog is the tables of a [VersionFile]: a row for each operation, and one for each
// record, which is locked before any of its operations and numbers them. Numbers may
// have gaps.
type oplog struct{ sqltable.Tables }

var logTables = sqltable.Layout{Default: "interlock_version_file",
	Tables: map[string]string{"log": "", "records": "_record"}, Indexes: map[string]string{"by_time": "_time"}}

// What an operation was before the statement that wrote it, and is after it. Column
// was keeps the one, column state the other, so that one statement writes and tells.
const (
	absent    = "absent"
	standing  = "standing"
	cancelled = "cancelled"
	refused   = "refused"
)

// final is the states that an operation does not leave.
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

// add logs an operation as being what state says, and tells what it was before. The
// data are those that it was logged with first. An operation that is cancelled, or
// refused, stays so.
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

// addMaria assigns state last: an assignment may see those before it.
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

// refuse makes a standing operation a refused one.
func (l oplog) refuse(ctx context.Context, record, id string) error {
	n, err := l.Exec(ctx, `update {log} set state = '`+refused+`' where record = ? and operation = ? and state = '`+standing+`'`, record, id)
	if err == nil && n != 1 {
		err = l.Bug("the operation %q does not stand in the log", id)
	}
	return err
}

// standing reads what was committed last: on MariaDB by a look that locks, since
// others would show a snapshot, and by the primary key, so that it locks no other
// record's rows.
func (l oplog) standing(ctx context.Context, record string) ([]Operation, error) {
	return sqltable.List(ctx, l.Tables, `select operation, data from {log} {maria force index (primary)}
		where record = ? and state = '`+standing+`' order by position {maria lock in share mode}`,
		[]any{record}, func(o *Operation) []any { o.Record = record; return []any{&o.ID, &o.Data} })
}
