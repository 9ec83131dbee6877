package tcc

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Table keeps items with a number of units, and the holds on them, in two tables of PostgreSQL or
// MariaDB. A unit is a room, or a cent: the balance of an account is its capacity minus the units
// sold.
//
// Its methods work in a transaction of the user, and take effect when it commits. Each hold has a row
// that serves as its barrier: a repeated call changes nothing and returns the first answer, and a try
// after its cancellation is refused. Units held and sold never exceed the capacity: the statement of
// a hold compares them, and a CHECK constraint does so as well. After a Retryable or Uncertain error
// the transaction must be rolled back. [Holds] is a [Resource] on it.
//
// The zero value works once [Table.Create] has created the tables. It is safe for concurrent use if
// each use has a transaction of its own.
type Table struct {
	// Name is the table of items, or schema.table; empty means "interlock_tcc". It is
	// at most 54 bytes, and trusted: never take it from a request.
	Name string
	// Longest bounds the duration of a hold, by the database's clock; 0 means a day. A longer
	// try is refused, because the clock of its caller must be wrong.
	Longest time.Duration
}

func (t Table) longest() time.Duration {
	if t.Longest <= 0 {
		return 24 * time.Hour
	}
	return t.Longest
}

// Create creates the table of items and that of holds, with the suffix "_hold", unless they exist.
// Several processes may call it at once. It takes effect when the transaction commits; on MariaDB it
// takes effect at once, and commits the statements before it.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	l, err := t.open("create tables of holds", "", db)
	if err != nil {
		return err
	}
	return l.Tables.Create(ctx,
		`create table if not exists {items} (
			item {id `+itemBytes+`} not null primary key,
			capacity bigint not null,
			held bigint not null,
			sold bigint not null,
			announced bigint not null,
			check (held >= 0 and sold >= 0 and announced >= 0),
			check (held + sold <= capacity),
			check (capacity + announced <= `+quantity+`)){maria  engine = InnoDB}`,
		`create table if not exists {holds} (
			transaction_id {id `+strconv.Itoa(driver.MaxTransaction)+`} not null,
			branch {id `+strconv.Itoa(maxBranch)+`} not null,
			way {id 8} not null,
			item {id `+itemBytes+`} not null,
			n bigint not null,
			state {id 12} not null,
			was {id 12} not null,
			calls bigint not null,
			until_ms bigint not null,
			ask_ms bigint,
			changed_ms bigint not null,
			primary key (transaction_id, branch)){maria  engine = InnoDB}`,
		`{pg create index if not exists {ask} on {holds} (ask_ms) where ask_ms is not null}`,
		`create index if not exists {due} on {holds} {pg (until_ms) where ask_ms is not null}{maria (ask_ms, until_ms)}`,
		`create index if not exists {old} on {holds} (changed_ms){pg  where state <> 'held'}`)
}

// Limits of the driver in SQL.
var (
	itemBytes = strconv.Itoa(driver.MaxName)
	quantity  = strconv.FormatInt(driver.MaxQuantity, 10)
)

// Level is the state of an item.
type Level struct {
	Capacity  int64 // all units; of an account, the sum of all deposits
	Held      int64 // sold if their transactions are confirmed
	Sold      int64 // of an account, the sum of all withdrawals
	Announced int64 // added if their transactions are confirmed
}

// Available returns the number of units that can be held.
func (l Level) Available() int64 { return l.Capacity - l.Held - l.Sold }

// Balance returns the balance of an account, with held units and without announced ones.
func (l Level) Balance() int64 { return l.Capacity - l.Sold }

// Set sets the capacity of an item, 0 to driver.MaxQuantity units, and creates the item if there is
// none. If more units are held and sold, the error is a [*RefusedError].
func (t Table) Set(ctx context.Context, db driver.SQL, item string, n int64) error {
	const op = "set capacity"
	if n < 0 || n > driver.MaxQuantity {
		return failure.Bug(op, item, "a capacity of %d: 0 to %d are allowed", n, int64(driver.MaxQuantity))
	}
	if err := driver.CheckName(op, "an item", item, driver.MaxName); err != nil {
		return err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return err
	}
	var capacity int64
	_, err = l.Row(ctx, `insert into {items} {as present} (item, capacity, held, sold, announced) values (?, ?, 0, 0, 0)
		{or item} capacity = case when {old held} + {old sold} <= {new capacity} and {new capacity} + {old announced} <= `+
		quantity+` then {new capacity} else {old capacity} end
		returning capacity`, []any{item, n}, &capacity)
	if err == nil && capacity != n {
		return &RefusedError{Item: item, N: n, Why: "more is held and sold, or announced"}
	}
	return err
}

// Show returns the state of an item in the transaction's view. It locks nothing. An unknown item has
// no units.
func (t Table) Show(ctx context.Context, db driver.SQL, item string) (level Level, err error) {
	const op = "show item"
	if err := driver.CheckName(op, "an item", item, driver.MaxName); err != nil {
		return level, err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return level, err
	}
	_, err = l.Row(ctx, `select capacity, held, sold, announced from {items} where item = ?`, []any{item},
		&level.Capacity, &level.Held, &level.Sold, &level.Announced)
	return level, err
}

// A RefusedError is a refusal by a rule of the business. It is Definite, and a repetition of the call
// gets the same refusal.
type RefusedError struct {
	Item string
	N    int64 // units requested
	Why  string
}

// Error returns the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%d units of %q are refused: %s", e.N, e.Item, e.Why)
}

// ErrorKind returns [interlock.Definite].
func (e *RefusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ViolationError rejects a call that contradicts the table: a confirmation without a hold, or a
// cancellation of a confirmed hold. The coordinator or this table has lost data. It is Definite:
// nothing was done, and an operator must act.
type ViolationError struct {
	Transaction, Branch string
	Operation           string // of the call
	State               string // of the hold; empty if there is none
}

// Error returns the call and the state of the hold.
func (e *ViolationError) Error() string {
	state := e.State
	if state == "" {
		state = "not known"
	}
	return fmt.Sprintf("%s branch %q of transaction %q: its hold is %s", e.Operation, e.Branch, e.Transaction, state)
}

// ErrorKind returns [interlock.Definite].
func (e *ViolationError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// layout names the tables of a [Table].
var layout = sqltable.Layout{Part: "tcc", Default: "interlock_tcc",
	Tables: map[string]string{"items": "", "holds": "_hold"}, Indexes: map[string]string{"ask": "_hold_ask", "due": "_hold_due", "old": "_hold_old"}}

// ledger has the tables within one transaction. MariaDB evaluates assignments in order, so an assignment
// that depends on a column comes before that column's. Texts are never empty, because one sql_mode
// turns empty texts into NULL.
type ledger struct{ sqltable.Tables }

// open opens the tables in a transaction.
func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables}, err
}

// callOf returns the call of ctx, for a hold.
func callOf(ctx context.Context, op string) (branch.Call, error) {
	c := branch.From(ctx)
	switch {
	case c.Transaction == "" && c.Branch == "":
		return c, failure.Bug(op, "", "the context has no call: see branch.With")
	case c.Step != "":
		return c, failure.Bug(op, c.Transaction, "branch %q has a step %q, but a hold belongs to a whole branch", c.Branch, c.Step)
	}
	if err := driver.CheckName(op, "a transaction", c.Transaction, driver.MaxTransaction); err != nil {
		return c, err
	}
	return c, driver.CheckName(op, "a branch", c.Branch, maxBranch)
}

// maxBranch is the longest name of a branch or resource, in bytes.
const maxBranch = 255

// Confirm makes the hold of the branch of [branch.From] final: units of [Table.Take] are sold, and
// units of [Table.Give] are added. fresh is false if it was already confirmed. If there is no hold,
// the error is a [*ViolationError] in a branch.Fail.
func (t Table) Confirm(ctx context.Context, db driver.SQL) (w Want, fresh bool, err error) {
	const op = "confirm"
	c, err := callOf(ctx, op)
	if err != nil {
		return w, false, err
	}
	l, err := t.open(op, c.Transaction, db)
	if err != nil {
		return w, false, err
	}
	changed, err := l.Exec(ctx, `update {holds} set state = 'confirmed', ask_ms = null, changed_ms = {millis now}
		where transaction_id = ? and branch = ? and state = 'held'`, c.Transaction, c.Branch)
	if err != nil {
		return w, false, err
	}
	recorded, err := l.read(ctx, c)
	switch {
	case err != nil:
		return w, false, err
	case recorded.state != stateConfirmed:
		return w, false, violation(c, op, recorded.state)
	}
	w = Want{Item: recorded.item, N: recorded.n}
	if changed == 0 {
		return w, false, nil
	}
	return w, true, l.settle(ctx, op, holdKinds[recorded.way].confirm, w, w.N, w.N, w.Item)
}

// read returns the hold of a call, and locks it. Its state is empty if there is none.
func (l ledger) read(ctx context.Context, c branch.Call) (recorded row, err error) {
	_, err = l.Row(ctx, `select state, way, item, n from {holds} where transaction_id = ? and branch = ? for update`,
		[]any{c.Transaction, c.Branch}, &recorded.state, &recorded.way, &recorded.item, &recorded.n)
	return recorded, err
}

// settle changes the item of a hold.
func (l ledger) settle(ctx context.Context, op, query string, w Want, args ...any) error {
	done, err := l.Exec(ctx, query, args...)
	if err == nil && done != 1 {
		err = &interlock.Error{Op: op, Name: w.Item, Kind: interlock.Definite, Err: errItemDeleted}
	}
	return err
}

// Cancel releases the hold of the branch of [branch.From]; fresh is false if there is none. A try of
// the branch that arrives later is refused. If the hold is confirmed, the error is a
// [*ViolationError] in a branch.Fail, and the transaction must be rolled back.
func (t Table) Cancel(ctx context.Context, db driver.SQL) (w Want, fresh bool, err error) {
	const op = "cancel"
	c, err := callOf(ctx, op)
	if err != nil {
		return w, false, err
	}
	l, err := t.open(op, c.Transaction, db)
	if err != nil {
		return w, false, err
	}
	var recorded row
	_, err = l.Row(ctx, `insert into {holds} {as present} (transaction_id, branch, way, item, n, state, was, calls, until_ms, ask_ms, changed_ms)
		values (?, ?, 'none', 'none', 0, 'blocked', 'none', 0, 0, null, {millis now})
		{or transaction_id, branch} calls = {old calls} + 1, was = {old state}, ask_ms = null,
			changed_ms = case when {old state} = 'held' then {new changed_ms} else {old changed_ms} end,
			state = case when {old state} = 'held' then 'cancelled' else {old state} end
		returning calls, was, way, item, n`, []any{c.Transaction, c.Branch}, &recorded.calls, &recorded.state, &recorded.way, &recorded.item, &recorded.n)
	switch {
	case err != nil:
		return w, false, err
	case recorded.state == stateConfirmed:
		return w, false, violation(c, op, recorded.state)
	case recorded.calls == 0 || recorded.state != stateHeld:
		return w, false, nil
	}
	w = Want{Item: recorded.item, N: recorded.n}
	return w, true, l.settle(ctx, op, holdKinds[recorded.way].cancel, w, w.N, w.Item)
}

func violation(c branch.Call, op, state string) error {
	return branch.Fail(&ViolationError{Transaction: c.Transaction, Branch: c.Branch, Operation: op, State: state})
}

// Ask returns the coordinator's decision on a branch. It is [Engine.Decide], or calls it.
type Ask func(ctx context.Context, transaction, branch string) (Decision, error)

// ref is the key of a hold.
type ref struct{ transaction, branch string }

// due lists expired holds, the oldest first. It locks nothing.
func (t Table) due(ctx context.Context, db driver.SQL, limit int) ([]ref, error) {
	l, err := t.open("sweep", "", db)
	if err != nil {
		return nil, err
	}
	return sqltable.List(ctx, l.Tables, `select transaction_id, branch from {holds} where ask_ms <= {millis start} order by ask_ms limit ?`,
		[]any{limit}, func(r *ref) []any { return []any{&r.transaction, &r.branch} })
}

// postpone sets when a sweep asks for the decision on a hold again.
func (t Table) postpone(ctx context.Context, db driver.SQL, o ref, wait time.Duration) error {
	l, err := t.open("sweep", o.transaction, db)
	if err != nil {
		return err
	}
	_, err = l.Exec(ctx, `update {holds} set ask_ms = {millis now} + ? where transaction_id = ? and branch = ? and state = 'held'`,
		wait.Milliseconds(), o.transaction, o.branch)
	return err
}

// Overdue returns the number of holds whose time is over, and the age of the oldest, by the
// database's clock. If it stays above zero, confirmations do not arrive, no sweep runs, or the
// coordinator is unreachable. On PostgreSQL it reads those holds only, on MariaDB an index of all
// open ones.
func (t Table) Overdue(ctx context.Context, db driver.SQL) (holds int, oldest time.Duration, err error) {
	l, err := t.open("count overdue holds", "", db)
	if err != nil {
		return 0, 0, err
	}
	var n, since int64
	_, err = l.Row(ctx, `select count(*), coalesce(max({millis start} - until_ms), 0) from {holds} where ask_ms is not null and until_ms <= {millis start}`,
		nil, &n, &since)
	return int(n), time.Duration(since) * time.Millisecond, err
}

// Forget removes holds that were confirmed, cancelled or refused longer ago than age, by the
// database's clock. It removes at most limit rows and returns their number. age is at least Longest,
// so that a try which arrives later is refused as too late. A confirmation that is repeated later is
// a violation, so choose age longer than transactions remain unfinished.
func (t Table) Forget(ctx context.Context, db driver.SQL, age time.Duration, limit int) (int, error) {
	const op = "forget holds"
	if age < t.longest() || limit < 1 {
		return 0, failure.Bug(op, t.Name, "an age of %v and a limit of %d: they must be at least %v and 1", age, limit, t.longest())
	}
	l, err := t.open(op, "", db)
	if err != nil {
		return 0, err
	}
	n, err := l.Delete(ctx, sqltable.Deletion{Table: "holds", Key: "transaction_id, branch",
		Where: `state <> 'held' and changed_ms < {millis start} - ?`, Args: []any{age.Milliseconds()}, Order: "changed_ms", Limit: limit})
	return int(n), err
}

// sweepBatch is the number of holds that one statement of a [Sweep] removes.
const sweepBatch = 500

// Sweep returns the retention of a table of holds: [Table.Forget] removes holds that ended longer
// than age ago, and [Table.Overdue] reports holds past their time. An age of 0 means twice
// coordinator.DefaultKeep.
func Sweep[T any](name string, db driver.BeginnerAt[T], t Table, age time.Duration) coordinator.Sweep {
	if age == 0 {
		age = 2 * coordinator.DefaultKeep
	}
	return coordinator.Sweep{Name: name, Run: func(ctx context.Context, _ journal.Mark) (s coordinator.SweepResult, err error) {
		for {
			var n int
			err := transact.Do(ctx, transact.At(db, driver.ReadCommitted), name, func(tx driver.Tx[T]) (err error) {
				n, err = t.Forget(ctx, tx, max(age, t.longest()), sweepBatch)
				return err
			})
			if err != nil {
				return s, err
			}
			s.Removed += n
			if n < sweepBatch {
				break
			}
		}
		err = transact.Do(ctx, transact.At(db, driver.ReadCommitted), name, func(tx driver.Tx[T]) (err error) {
			s.Overdue, s.Oldest, err = t.Overdue(ctx, tx)
			return err
		})
		return s, err
	}}
}
