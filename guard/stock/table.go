package stock

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Table keeps items and reservations in three tables of the user's database, and
// changes them in the user's transaction: what is held, sold or adjusted takes
// effect when that commits, together with everything else in it. After an error
// that is Retryable or Uncertain the transaction must be rolled back; after any
// other it may go on, and the stock is as before the call.
//
// The database itself keeps what is held and sold from exceeding the supply, by
// a CHECK. The zero value is ready once [Table.Create] made the tables. It is
// safe for concurrent use, with a transaction for each.
type Table struct {
	// Name is the table of items, or schema.table; empty means "interlock_stock".
	// It is at most 48 bytes, and trusted: never take it from a request.
	Name string
	// Keep is how long reservations are remembered after the time at which they
	// were to expire, and operations after they were done. [Table.Sweep] forgets
	// older ones: an id that comes again after that is a new one. 0 means
	// [DefaultKeep]. Negative is taken as 0.
	Keep time.Duration
	// Observe receives events; the zero value disables it.
	Observe observe.Stock
}

// DefaultKeep is how long ids are remembered if nothing else is said.
const DefaultKeep = 7 * 24 * time.Hour

// keep is how long ids are remembered.
func (t Table) keep() time.Duration {
	if t.Keep <= 0 {
		return DefaultKeep
	}
	return t.Keep
}

// Create makes the table of items, and two more, named with "_reservation" and
// "_operation" at the end, unless they exist. Several processes may do it at
// once. It takes effect when the transaction commits, on MariaDB at once: there
// it commits what was done in the transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	l, err := t.open("create tables of the stock", "", db)
	if err != nil {
		return err
	}
	return l.Tables.Create(ctx,
		`create table if not exists {items} (
			item {name 512} not null primary key,
			supply bigint not null check (supply between 0 and `+quantity+`),
			held bigint not null check (held >= 0),
			sold bigint not null check (sold >= 0),
			changes bigint not null default 0,
			check (held + sold <= supply)){engine}`,
		`create table if not exists {lines} (
			reservation {name 512} not null,
			position int not null,
			item {name 512} not null,
			n bigint not null check (n > 0),
			state {pg text}{maria varchar(9) character set ascii collate ascii_bin} not null
				check (state in ('held', 'confirmed', 'cancelled', 'expired')),
			expires_at {time} not null,{maria
			repeats bigint not null,}
			primary key (reservation, position),
			{pg unique (reservation, item)}{maria index due (item, state, expires_at),
			index old (position, expires_at)}){engine}`,
		`{pg create index if not exists {due} on {lines} (item, expires_at) where state = 'held'}`,
		`{pg create index if not exists {old} on {lines} (expires_at) where position = 0}`,
		`create table if not exists {operations} (
			item {name 512} not null,
			operation {name 512} not null,
			delta bigint not null check (delta <> 0),
			done_at {time} not null,{maria
			repeats bigint not null,}
			primary key (item, operation){maria ,
			index done (done_at)}){engine}`,
		`{pg create index if not exists {done} on {operations} (done_at)}`)
}

// Set makes the supply of an item n units in all, 0 to driver.MaxQuantity, and
// the item known if it was not. It is a [ShortError] if more is held and sold.
// Repeating it converges only if nobody else sets or adjusts the item.
func (t Table) Set(ctx context.Context, db driver.SQL, item string, n int64) error {
	const op = "set supply"
	if err := suppliable(op, item, n); err != nil {
		return err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return err
	}
	is, err := l.upsert(ctx, item, n)
	if err == nil && is != n {
		err = l.lower(ctx, item, n)
	}
	return err
}

func suppliable(op, item string, n int64) error {
	if n < 0 || n > driver.MaxQuantity {
		return failure.Bug(op, item, "a supply of %d: it can be 0 to %d", n, int64(driver.MaxQuantity))
	}
	return named(op, "an item", item)
}

// Show tells how many units of an item there are, as the transaction sees it and
// without locking anything. An item that is not known has none.
func (t Table) Show(ctx context.Context, db driver.SQL, item string) (driver.StockLevel, error) {
	const op = "show stock"
	if err := named(op, "an item", item); err != nil {
		return driver.StockLevel{}, err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return driver.StockLevel{}, err
	}
	level, err := l.show(ctx, item)
	return level, err
}
