package countermeasure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Staging hides the rows that a saga writes until it publishes them: the pessimistic view. They
// are stored in a table beside the user's, under the transaction's id. Readers of the user's
// table see all rows of a saga or none.
//
// Two sagas may stage the same row; the last to publish wins. To prevent that, flag the row with
// a [SemanticLock], or change numbers by a [Sum]. A Stage after Publish or Drop leaves an
// invisible row in the staging table. The step's barrier prevents that, and [Staging.Leftover]
// finds it. Unique keys other than Key are checked when rows are published.
type Staging struct {
	// Table is the published table, or schema.table. Key has the columns of its primary or
	// unique key, and Columns the other staged columns. Columns that are not staged keep their
	// value, or get their default. All names are trusted: never take them from a request.
	Table        string
	Key, Columns []string
	// Staged is the table of staged rows, or schema.table; empty means Table with
	// "_staged" at the end.
	Staged string
}

// staging is a Staging in one transaction. Its statements have placeholders for lists of columns: {key},
// {columns} for all of them, and {others} for assignments of the columns outside the key.
type staging struct {
	sqltable.Tables
	width int // number of columns
}

func (s Staging) open(op, transaction string, db driver.SQL) (staging, error) {
	staged := cmp.Or(s.Staged, s.Table+"_staged")
	opened, err := sqltable.OpenUsers(op, transaction, db, "table", s.Table, "staged", staged,
		"by_transaction", sqltable.Unqualified(staged)+"_key")
	t := staging{opened, len(s.Key) + len(s.Columns)}
	if err != nil {
		return t, err
	}
	if len(s.Key) == 0 {
		return t, t.Bug("there is no Key")
	}
	columns := make([]string, t.width)
	for i, name := range slices.Concat(s.Key, s.Columns) {
		if columns[i], err = sqltable.Identifier(db.Dialect(), name, ""); err != nil {
			return t, err
		}
	}
	replaced := ", %[1]s = excluded.%[1]s"
	if t.Maria() {
		replaced = ", %[1]s = values(%[1]s)"
	}
	key := columns[:len(s.Key)]
	t.Define("key", strings.Join(key, ", "))
	t.Define("columns", strings.Join(columns, ", "))
	t.Define("first", key[0])
	t.Define("others", formatEach(columns[len(s.Key):], replaced))
	t.Define("same", formatEach(key, " and staged.%[1]s = published.%[1]s"))
	return t, nil
}

// formatEach formats each column, and joins the results.
func formatEach(columns []string, format string) string {
	var all strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&all, format, c)
	}
	return all.String()
}

// of opens the tables for an operation in a transaction.
func (s Staging) of(op, transaction string, db driver.SQL) (staging, error) {
	if err := driver.CheckName(op, "a transaction", transaction, driver.MaxTransaction); err != nil {
		return staging{}, err
	}
	return s.open(op, transaction, db)
}

// Create creates the table of staged rows, unless it exists, with the columns of the published table,
// which must exist. Several processes may call it at once. It takes effect when the transaction commits;
// on MariaDB it takes effect at once, and commits the statements before it.
func (s Staging) Create(ctx context.Context, db driver.SQL) error {
	t, err := s.open("create staging table", "", db)
	if err != nil {
		return err
	}
	return t.Tables.Create(ctx,
		`{pg create table if not exists {staged} as select ''::text collate "C" as transaction_id, clock_timestamp() as staged_at, {columns}
			from {table} with no data}`,
		`{pg create unique index if not exists {by_transaction} on {staged} (transaction_id, {key})}`,
		`{maria create table if not exists {staged} (
			transaction_id varbinary(512) not null default '-', staged_at datetime(6) not null default '1970-01-02',
			primary key (transaction_id, {key})) engine = InnoDB
			as select {columns} from {table} where false}`)
}

// Stage stores a row for a transaction: the values of Key followed by those of Columns. It
// replaces an earlier row of the same key and transaction, so repeating it is harmless. A wrong
// number of values is a Bug. It costs one statement.
func (s Staging) Stage(ctx context.Context, db driver.SQL, transaction string, values ...any) error {
	t, err := s.of("stage row", transaction, db)
	if err != nil {
		return err
	}
	if len(values) != t.width {
		return t.Bug("%d values for %d columns", len(values), t.width)
	}
	_, err = t.Exec(ctx, `insert into {staged} (transaction_id, staged_at, {columns})
		values (?, {now}`+strings.Repeat(", ?", len(values))+`)
		{pg on conflict (transaction_id, {key}) do update set}{maria on duplicate key update} staged_at = {new staged_at}{others}`, append([]any{transaction}, values...)...)
	return err
}

// Publish writes the staged rows of a transaction into the table that readers see, by one
// statement, and returns their number: 0 if they were published or dropped before. A collision
// with another Key in another unique key is a Definite error: roll back. Call it in the last
// step, after the pivot, because it overwrites the former rows. It costs one statement on
// PostgreSQL and three on MariaDB.
func (s Staging) Publish(ctx context.Context, db driver.SQL, transaction string) (rows int64, err error) {
	t, err := s.of("publish rows", transaction, db)
	if err != nil {
		return 0, err
	}
	if t.Maria() {
		return t.publishMaria(ctx, transaction)
	}
	// The deleted rows are published, so that the second of two publishers finds none.
	_, err = t.Row(ctx, `
		with gone as (delete from {staged} where transaction_id = ? returning {columns}),
		published as (
			insert into {table} ({columns}) select {columns} from gone order by {key}
			on conflict ({key}) do update set {first} = excluded.{first}{others})
		select count(*) from gone`, []any{transaction}, &rows)
	return rows, err
}

// publishMaria locks the staged rows before it reads them, so that a concurrent publisher waits and finds
// none. MariaDB cannot name the key of a collision, and updates a row that collides by any key. So keys are
// not assigned, and only rows that have their key afterwards count as published.
func (t staging) publishMaria(ctx context.Context, transaction string) (rows int64, err error) {
	err = t.Each(ctx, `select 1 from {staged} where transaction_id = ? for update`, []any{transaction},
		func(func(...any) error) error { rows++; return nil })
	if err != nil || rows == 0 {
		return 0, err
	}
	_, err = t.Exec(ctx, `insert into {table} ({columns}) select {columns} from {staged} where transaction_id = ? order by {key}
		on duplicate key update {table}.{first} = {table}.{first}{others}`, transaction)
	if err != nil {
		return 0, err
	}
	gone, err := t.Exec(ctx, `delete staged from {staged} as staged join {table} as published on true{same} where staged.transaction_id = ?`, transaction)
	if err == nil && gone != rows {
		err = t.Refused(errCollides)
	}
	return rows, err
}

var errCollides = errors.New("a staged row conflicts with another key by a unique constraint that is not on Key")

// Drop deletes the staged rows of a transaction and returns their number. It is the undo of
// Stage; repeating it is harmless. It costs one statement.
func (s Staging) Drop(ctx context.Context, db driver.SQL, transaction string) (rows int64, err error) {
	t, err := s.of("drop rows", transaction, db)
	if err != nil {
		return 0, err
	}
	return t.drop(ctx, transaction)
}

func (t staging) drop(ctx context.Context, transaction string) (rows int64, err error) {
	return t.Exec(ctx, `delete from {staged} where transaction_id = ?`, transaction)
}

// Leftover returns up to limit transactions that have rows staged for longer than age, by the
// database's clock, and have published nothing since. Ask their coordinator, and Drop those that
// have ended. It scans the staging table without locks.
func (s Staging) Leftover(ctx context.Context, db driver.SQL, age time.Duration, limit int) (transactions []string, err error) {
	t, err := s.open("look for leftovers", "", db)
	if err != nil {
		return nil, err
	}
	if age < 0 || limit < 1 {
		return nil, t.Bug("an age of %v and a limit of %d", age, limit)
	}
	return sqltable.Column[string](ctx, t.Tables, `select transaction_id from {staged} group by transaction_id having max(staged_at) < {now} - {span}
		order by max(staged_at) limit ?`, age.Microseconds(), limit)
}
