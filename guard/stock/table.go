package stock

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Table keeps items and reservations in three tables of the user's database, and changes them
// in the caller's transaction. Changes take effect when it commits, together with everything
// else in it. After a Retryable or Uncertain error the transaction must be rolled back. After
// any other error it may continue, and the stock is as before the call.
//
// A CHECK in the database prevents held and sold units from exceeding the supply. The zero
// value is ready once [Table.Create] has created the tables. It is safe for concurrent use,
// with one transaction each.
type Table struct {
	// Name is the table of items, or schema.table; empty means "interlock_stock".
	// It is at most 48 bytes, and trusted: never take it from a request.
	Name string
	// Keep is how long reservations are kept after their expiry, and operations after they were
	// done. [Table.Sweep] deletes older ones: after that their ids count as new. 0 means
	// [DefaultKeep]. Negative counts as 0.
	Keep time.Duration
	// Observe receives events; the zero value disables it.
	Observe observe.Stock
}

// DefaultKeep is the default of Table.Keep.
const DefaultKeep = 7 * 24 * time.Hour

// keep returns how long ids are kept.
func (t Table) keep() time.Duration {
	if t.Keep <= 0 {
		return DefaultKeep
	}
	return t.Keep
}

// Create creates the table of items, and two more with the suffixes "_reservation" and
// "_operation", unless they exist. Several processes may call it concurrently. It takes effect
// when the transaction commits. On MariaDB it takes effect at once, and commits what the
// transaction did before.
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

// Set sets the total supply of an item to n units, 0 to driver.MaxQuantity, and creates the
// item if it is unknown. If more units are held and sold, the error is a [ShortError].
// Repeating it converges only if no other process sets or adjusts the item.
func (t Table) Set(ctx context.Context, db driver.SQL, item string, n int64) error {
	const op = "set supply"
	if err := validateSupply(op, item, n); err != nil {
		return err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return err
	}
	supply, err := l.upsert(ctx, item, n)
	if err == nil && supply != n {
		err = l.lower(ctx, item, n)
	}
	return err
}

func validateSupply(op, item string, n int64) error {
	if n < 0 || n > driver.MaxQuantity {
		return failure.Bug(op, item, "a supply of %d: it can be 0 to %d", n, int64(driver.MaxQuantity))
	}
	return validateName(op, "an item", item)
}

// Show returns the numbers of units of an item, as the transaction sees them, without locks. An
// unknown item has none.
func (t Table) Show(ctx context.Context, db driver.SQL, item string) (driver.StockLevel, error) {
	const op = "show stock"
	if err := validateName(op, "an item", item); err != nil {
		return driver.StockLevel{}, err
	}
	l, err := t.open(op, item, db)
	if err != nil {
		return driver.StockLevel{}, err
	}
	return l.show(ctx, item)
}
