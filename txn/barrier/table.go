package barrier

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Table keeps a row for each branch in a table of the participant's own database, beside the data
// that its functions change. The zero value works once [Table.Create] has created the tables. It
// is safe for concurrent use if each use has a transaction of its own.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_barrier". It is at
	// most 56 bytes, and trusted: never take it from a request.
	Name string
	// Level is the isolation level of transactions that this package begins. The zero value
	// is the session's.
	Level driver.Isolation
	// Attempts bounds how often a transaction is run that the database rolls back because
	// of others; 0 means [DefaultAttempts].
	Attempts int
	// Patience bounds an outside call, in whole microseconds: its context ends then, and no
	// other outside call of its branch begins before. 0 means [DefaultPatience].
	Patience time.Duration
	// Idle bounds the time between two statements of a transaction that this package
	// begins, also within a function. The server then ends the transaction, so that a
	// stopped process does not keep row locks. It is at least a second; 0 means
	// [DefaultIdle], below zero keeps the session's setting.
	Idle time.Duration
	// Alarm receives each violation before it is returned; nil disables it. It must not
	// block.
	Alarm func(*ViolationError)
}

// Defaults of [Table].
const (
	DefaultAttempts = 5
	DefaultPatience = 30 * time.Second
	// DefaultIdle is half of a call's default timeout, so that a call which waits for the locks
	// of a stopped process can still succeed.
	DefaultIdle = 15 * time.Second
)

func (t Table) attempts() int { return max(1, cmp.Or(t.Attempts, DefaultAttempts)) }

func (t Table) patience() time.Duration {
	if t.Patience <= 0 {
		return DefaultPatience
	}
	return max(t.Patience, time.Microsecond)
}

// bounded is the part of driver.Tx that sets the bounds of a transaction.
type bounded interface {
	Bound(ctx context.Context, idle, statement time.Duration) error
}

// bound makes the server end an idle transaction. It comes before the first statement that locks
// anything.
func (t Table) bound(ctx context.Context, tx bounded) error {
	if t.Idle < 0 {
		return nil
	}
	return tx.Bound(ctx, max(cmp.Or(t.Idle, DefaultIdle), time.Second), 0)
}

const marksSuffix = "_mark"

var layout = sqltable.Layout{Part: "barrier", Default: "interlock_barrier",
	Tables: map[string]string{"rows": "", "marks": marksSuffix}, Indexes: map[string]string{"begun": "_begun"}}

// ledger has the tables in one transaction.
type ledger struct{ sqltable.Tables }

func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables}, err
}

// Create creates the table of branches, and that of the low-water mark with the suffix "_mark",
// unless they exist. Several processes may call it at once. It takes effect when the transaction
// commits; on MariaDB it takes effect at once, and commits the statements before it.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	l, err := t.open("create barrier", "", db)
	if err != nil {
		return err
	}
	const name = `{pg text}{maria varchar(10) character set ascii collate ascii_bin} not null`
	err = l.Tables.Create(ctx,
		`create table if not exists {rows} (
			transaction_id {name 200} not null,
			branch {name 255} not null,
			step {name 255} not null,
			state `+name+` check (state in `+among(allStates)+`),
			previous `+name+`,
			hash {pg bytea}{maria varbinary(32)} not null,
			known int not null,
			result {bytes} not null,
			busy bigint not null,
			remaining bigint not null,
			attempts bigint not null,
			begun bigint not null,
			primary key (transaction_id, branch, step){maria ,
			index begun (begun)}){maria  engine = InnoDB}`,
		`{pg create index if not exists {begun} on {rows} (begun)}`,
		`create table if not exists {marks} ({pg generation bigint primary key}{maria only_row int not null primary key}, mark bigint not null, `+exceptedColumn+`){maria  engine = InnoDB}`,
		`{pg insert into {marks} (generation, mark) select 1, 0 where not exists (select 1 from {marks})}`+
			`{maria insert into {marks} (only_row, mark) values (1, 0) on duplicate key update only_row = 1}`)
	if err != nil {
		return err
	}
	return l.addExcepted(ctx, cmp.Or(t.Name, layout.Default)+marksSuffix)
}

const exceptedColumn = `excepted {pg text not null default ''}{maria mediumtext character set ascii collate ascii_bin not null default ','}`

// addExcepted adds a column to a table of marks that an earlier version created. The statement
// locks the table, so it is not run if the column exists.
func (l ledger) addExcepted(ctx context.Context, marks string) error {
	schema := ""
	if i := strings.LastIndexByte(marks, '.'); i >= 0 {
		schema, marks = marks[:i], marks[i+1:]
	}
	present, err := l.Row(ctx, `select 1 from information_schema.columns where table_name = ? and column_name = 'excepted'
and table_schema = coalesce(nullif(?, ''), {pg current_schema()}{maria database()})`, []any{marks, schema}, new(int))
	if err != nil || present {
		return err
	}
	_, err = l.Exec(ctx, `alter table {marks} add column if not exists `+exceptedColumn)
	return err
}
