package stock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
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
func (l ledger) upsert(ctx context.Context, item string, n int64) (supply int64, err error) {
	_, err = l.Row(ctx, `insert into {items} {as present} (item, supply, held, sold) values (?, ?, 0, 0)
		{or item} supply = case when {old held} + {old sold} <= {new supply} then {new supply} else {old supply} end, changes = {old changes} + 1
		returning supply`, []any{item, n}, &supply)
	return supply, err
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

// MaxLines is the maximum number of items of a reservation.
const MaxLines = 100

// A Line is a number of units of one item. A seat is an item with a supply of one.
type Line struct {
	Item string // 1 to driver.MaxName bytes of UTF-8 without NUL
	N    int64  // 1 to driver.MaxQuantity
}

// reservation is a request to hold lines, which are sorted by item. All transactions lock items
// in that order, so they do not deadlock.
type reservation struct {
	id    string
	ttl   time.Duration
	lines []Line
}

// newReservation validates a request to hold lines.
func newReservation(op, id string, ttl time.Duration, lines []Line) (reservation, error) {
	r := reservation{id: id, ttl: ttl, lines: slices.Clone(lines)}
	if err := validateName(op, "a reservation", id); err != nil {
		return r, err
	}
	if len(lines) == 0 || len(lines) > MaxLines {
		return r, failure.Bug(op, id, "%d lines: a reservation has 1 to %d", len(lines), MaxLines)
	}
	slices.SortFunc(r.lines, func(a, b Line) int { return cmp.Compare(a.Item, b.Item) })
	for i, line := range r.lines {
		if err := validateName(op, "an item", line.Item); err != nil {
			return r, err
		}
		if i > 0 && line.Item == r.lines[i-1].Item {
			return r, failure.Bug(op, id, "the item %q occurs twice", line.Item)
		}
		if err := (driver.StockHold{N: line.N, TTL: ttl}).Check(); err != nil {
			return r, failure.Bug(op, id, "%w", err)
		}
	}
	return r, nil
}

// An Adjustment changes the supply of an item by a difference, once per Operation. Operation is
// an id that the caller chooses, such as that of a request or event. See
// [driver.StockAdjustment].
type Adjustment = driver.StockAdjustment

func validateAdjustment(op string, a Adjustment) error {
	if err := validateName(op, "an item", a.Item); err != nil {
		return err
	}
	if err := validateName(op, "an operation", a.Operation); err != nil {
		return err
	}
	if err := a.Check(); err != nil {
		return failure.Bug(op, a.Item, "%w", err)
	}
	return nil
}
