package tcc

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Table keeps items, of which there are so many units, and what transactions hold of
// them, in two tables of PostgreSQL or MariaDB. A unit is a room, or a cent: a balance
// is the capacity of an account less what was sold of it.
//
// Its methods work in a transaction of the user's, and take effect when that commits.
// A row for each hold is its barrier: repeated calls change nothing and give the first
// one's answer, and a try that comes after its cancellation is refused. What is held
// and sold never exceeds the capacity: the statement that holds compares it, and a
// CHECK stands behind it. After a Retryable or Uncertain error the transaction must be
// rolled back. [Holds] makes a [Resource] of it.
//
// The zero value is ready once [Table.Create] made the tables. It is safe for
// concurrent use, with a transaction for each.
type Table struct {
	// Name is the table of items, or schema.table; empty means "interlock_tcc". It is
	// at most 54 bytes, and trusted: never take it from a request.
	Name string
	// Longest is the most time, by the database's clock, that a hold may have left when
	// it is tried; 0 means a day. A try for longer is refused: it would come from a clock
	// that is wrong.
	Longest time.Duration
}

func (t Table) longest() time.Duration {
	if t.Longest <= 0 {
		return 24 * time.Hour
	}
	return t.Longest
}

// Create makes the table of items, and one named with "_hold" at the end, unless they
// exist. Several processes may do it at once. It takes effect when the transaction
// commits, on MariaDB at once: there it commits what was done in the transaction before.
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
		`create index if not exists {ask} on {holds} (ask_ms)`)
}

// Limits of the driver in SQL.
var (
	itemBytes = strconv.Itoa(driver.MaxName)
	quantity  = strconv.FormatInt(driver.MaxQuantity, 10)
)

// Level is an item at some instant.
type Level struct {
	Capacity  int64 // units in all; of an account, all that ever came
	Held      int64 // to be sold if their transactions are confirmed
	Sold      int64 // for good; of an account, all that ever left
	Announced int64 // to be added if their transactions are confirmed
}

// Available is how many units can be held.
func (l Level) Available() int64 { return l.Capacity - l.Held - l.Sold }

// Balance is what an account has, with what is held and without what is announced.
func (l Level) Balance() int64 { return l.Capacity - l.Sold }

// Set makes the capacity of an item n units in all, 0 to driver.MaxQuantity, and the
// item known if it was not. It is a [*RefusedError] if more is held and sold.
func (t Table) Set(ctx context.Context, db driver.SQL, item string, n int64) error {
	const op = "set capacity"
	if n < 0 || n > driver.MaxQuantity {
		return failure.Bug(op, item, "a capacity of %d: it can be 0 to %d", n, int64(driver.MaxQuantity))
	}
	if err := driver.CheckName(op, "an item", item, driver.MaxName); err != nil {
		return err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return err
	}
	var is int64
	_, err = l.Row(ctx, `insert into {items} {as present} (item, capacity, held, sold, announced) values (?, ?, 0, 0, 0)
		{or item} capacity = case when {old held} + {old sold} <= {new capacity} and {new capacity} + {old announced} <= `+
		quantity+` then {new capacity} else {old capacity} end
		returning capacity`, []any{item, n}, &is)
	if err == nil && is != n {
		return &RefusedError{Item: item, N: n, Why: "more is held and sold, or announced"}
	}
	return err
}

// Show tells how many units of an item there are, as the transaction sees it and
// without locking anything. Of an item that is not known there are none.
func (t Table) Show(ctx context.Context, db driver.SQL, item string) (is Level, err error) {
	const op = "show item"
	if err := driver.CheckName(op, "an item", item, driver.MaxName); err != nil {
		return is, err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return is, err
	}
	_, err = l.Row(ctx, `select capacity, held, sold, announced from {items} where item = ?`, []any{item},
		&is.Capacity, &is.Held, &is.Sold, &is.Announced)
	return is, err
}

// A RefusedError is a refusal for a reason of the business. It is Definite, and
// remembered: the same call is refused again.
type RefusedError struct {
	Item string
	N    int64 // how many units were asked for
	Why  string
}

// Error says why.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%d units of %q are refused: %s", e.N, e.Item, e.Why)
}

// ErrorKind is [interlock.Definite].
func (e *RefusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ViolationError is a call that cannot be, if the coordinator and this table are
// sound: a confirmation of what is not held, or a cancellation of what is confirmed.
// It is Definite: nothing was done, and a person has to look.
type ViolationError struct {
	Transaction, Branch string
	Operation           string // what was asked for
	State               string // of the hold; empty if there is none
}

// Error says what is there instead.
func (e *ViolationError) Error() string {
	state := e.State
	if state == "" {
		state = "not known"
	}
	return fmt.Sprintf("%s branch %q of transaction %q: its hold is %s", e.Operation, e.Branch, e.Transaction, state)
}

// ErrorKind is [interlock.Definite].
func (e *ViolationError) ErrorKind() interlock.ErrorKind { return interlock.Definite }
