package stock

import (
	"cmp"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

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

// reserve validates a request to hold lines.
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
			return r, failure.Bug(op, id, "the item %q is there twice", line.Item)
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
