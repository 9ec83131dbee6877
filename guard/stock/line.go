package stock

import (
	"cmp"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// MaxLines is how many items one reservation can have.
const MaxLines = 100

// A Line is a number of units of one item. A seat is an item of which there is
// one.
type Line struct {
	Item string // 1 to driver.MaxName bytes of UTF-8 without NUL
	N    int64  // 1 to driver.MaxQuantity
}

// reservation is what is to be held, its lines sorted by their items. All who
// lock items do it in that order, so that nobody waits in a circle.
type reservation struct {
	id    string
	ttl   time.Duration
	lines []Line
}

// reserve checks what a caller asks for.
func reserve(op, id string, ttl time.Duration, lines []Line) (reservation, error) {
	r := reservation{id: id, ttl: ttl, lines: slices.Clone(lines)}
	if err := named(op, "a reservation", id); err != nil {
		return r, err
	}
	switch {
	case ttl < time.Millisecond:
		return r, bug(op, id, "a hold of %v: it is to last a millisecond at least", ttl)
	case len(lines) == 0 || len(lines) > MaxLines:
		return r, bug(op, id, "%d lines: a reservation has 1 to %d", len(lines), MaxLines)
	}
	slices.SortFunc(r.lines, func(a, b Line) int { return cmp.Compare(a.Item, b.Item) })
	for i, line := range r.lines {
		if err := named(op, "an item", line.Item); err != nil {
			return r, err
		}
		switch {
		case line.N < 1 || line.N > driver.MaxQuantity:
			return r, bug(op, id, "%d units of %q: it can be 1 to %d", line.N, line.Item, int64(driver.MaxQuantity))
		case i > 0 && line.Item == r.lines[i-1].Item:
			return r, bug(op, id, "the item %q is there twice", line.Item)
		}
	}
	return r, nil
}

// An Adjustment changes the supply of an item by a difference, once for each
// Operation.
type Adjustment struct {
	Item string // 1 to driver.MaxName bytes of UTF-8 without NUL
	// Operation is what is done once, however often it is asked for: a request's
	// or an event's id, one of the item's own. It is as long as a name of an item.
	Operation string
	// Delta is added to the supply; a negative one takes units that are available.
	// It is not 0, and at most driver.MaxQuantity either way.
	Delta int64
	// Floor is how many units must be available after a negative Delta; 0 or more.
	Floor int64
}

func (a Adjustment) check(op string) error {
	if err := named(op, "an item", a.Item); err != nil {
		return err
	}
	if err := named(op, "an operation", a.Operation); err != nil {
		return err
	}
	switch {
	case a.Delta == 0 || max(a.Delta, -a.Delta) > driver.MaxQuantity || a.Delta < -driver.MaxQuantity:
		return bug(op, a.Item, "a difference of %d: it is not 0, and at most %d", a.Delta, int64(driver.MaxQuantity))
	case a.Floor < 0 || a.Floor > driver.MaxQuantity:
		return bug(op, a.Item, "a floor of %d: it can be 0 to %d", a.Floor, int64(driver.MaxQuantity))
	}
	return nil
}

// take is how many units have to be available; 0 for a positive Delta.
func (a Adjustment) take() int64 {
	if a.Delta > 0 {
		return 0
	}
	return a.Floor - a.Delta
}
