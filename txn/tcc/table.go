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
		`create index if not exists {ask} on {holds} (ask_ms)`)
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

// Show returns the state of an item in the transaction's view. It locks nothing. An unknown item has
// no units.
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
