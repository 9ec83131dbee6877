package stock

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/observe"
)

// ledger is the tables in one transaction.
type ledger struct {
	sqltable.Tables
	observe observe.Stock
}

var layout = sqltable.Layout{Part: "stock", Default: "interlock_stock",
	Tables:  map[string]string{"items": "", "lines": "_reservation", "operations": "_operation"},
	Indexes: map[string]string{"due": "_due", "old": "_old", "done": "_done"}}

// open opens the tables in a transaction.
func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables, t.Observe}, err
}

// hold records a reservation, and takes its units if there are enough of each item. If the
// reservation was recorded before, fresh is false and nothing is done.
func (l ledger) hold(ctx context.Context, r reservation) (fresh, taken bool, err error) {
	if l.Maria() {
		return l.holdMaria(ctx, r)
	}
	return l.holdPostgres(ctx, r)
}

// expired finds and locks the earliest expired reservations of an item, except the reservation
// named except, until they have n units. The caller has locked the item and read it as item.
func (l ledger) expired(ctx context.Context, item lockedItem, n int64, except string) (expired []heldLine, sum int64, err error) {
	if l.Maria() {
		return l.expiredMaria(ctx, item, n, except)
	}
	return l.expiredPostgres(ctx, item, n, except)
}

// adjust records an operation, and applies it if there are enough units.
func (l ledger) adjust(ctx context.Context, a Adjustment) (fresh, done bool, err error) {
	if l.Maria() {
		return l.adjustMaria(ctx, a)
	}
	return l.adjustPostgres(ctx, a)
}

// upsert sets a supply unless more units are held and sold, and returns the resulting supply.
func (l ledger) upsert(ctx context.Context, item string, n int64) (is int64, err error) {
	_, err = l.Row(ctx, `insert into {items} {as present} (item, supply, held, sold) values (?, ?, 0, 0)
		{or item} supply = case when {old held} + {old sold} <= {new supply} then {new supply} else {old supply} end, changes = {old changes} + 1
		returning supply`, []any{item, n}, &is)
	return is, err
}

// move adds differences to the numbers of an item. Column changes makes every change of an
// item, and of what is held of it, visible.
//
// It has no condition, so the CHECK must hold in every version of the item that the statement
// may see first (see [holdStatement]). That is so for one of two reasons. An earlier statement
// locked the item, and there is only one version. Or the units taken from held are those of
// lines that an earlier statement locked as held, and are held in all versions.
func (l ledger) move(ctx context.Context, item string, supply, held, sold int64) error {
	_, err := l.Exec(ctx, `update {items} set supply = supply + ?, held = held + ?, sold = sold + ?, changes = changes + 1 where item = ?`,
		supply, held, sold, item)
	return err
}

func (l ledger) show(ctx context.Context, item string) (level driver.StockLevel, err error) {
	_, err = l.Row(ctx, `select supply, held - (select coalesce(sum(n), 0) from {lines}
			where item = i.item and state = 'held' and expires_at <= {start}), sold
		from {items} i where item = ?`, []any{item}, &level.Supply, &level.Held, &level.Sold)
	return level, err
}
