package stock

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Store keeps items and reservations in a key-value store; each call is one atomic step. A call
// covers one item. A reservation of several items uses the same id for each, and a caller that
// gets too few cancels the others. If Confirm succeeds and the caller then fails to record that
// elsewhere, the item is sold. So confirm last, and repeat until there is a reply.
//
// It is safe for concurrent use if its driver is. It does not retry; repeating a call after an
// Uncertain or Retryable error converges.
type Store struct {
	stock   driver.Stock
	observe observe.Stock
}

// Options configure a [Store]; nil and the zero value are valid.
type Options struct {
	// Observe receives events; the zero value disables it.
	Observe observe.Stock
}

// NewStore returns a Store on s, which a driver package provides. It does not block.
func NewStore(s driver.Stock, o *Options) *Store {
	o = cmp.Or(o, &Options{})
	return &Store{stock: s, observe: o.Observe}
}

// Set sets the total supply of an item to n units, as [Table.Set] does.
func (s *Store) Set(ctx context.Context, item string, n int64) error {
	const op = "set supply"
	if err := validateSupply(op, item, n); err != nil {
		return err
	}
	a, err := s.stock.Supply(ctx, item, n)
	return s.judge(op, item, "", a, err)
}

// Adjust applies a difference once, as [Table.Adjust] does.
func (s *Store) Adjust(ctx context.Context, a Adjustment) error {
	const op = "adjust stock"
	if err := validateAdjustment(op, a); err != nil {
		return err
	}
	answer, err := s.stock.Adjust(ctx, a)
	return s.judge(op, a.Item, a.Operation, answer, err)
}

// Hold takes units of an item for a reservation, as [Table.Hold] does. A repeated call with the
// same number of units does nothing, and does not extend the hold.
func (s *Store) Hold(ctx context.Context, id string, ttl time.Duration, line Line) error {
	const op = "hold"
	if _, err := newReservation(op, id, ttl, []Line{line}); err != nil {
		return err
	}
	a, err := s.stock.Hold(ctx, driver.StockHold{Item: line.Item, Reservation: id, N: line.N, TTL: ttl})
	return s.judge(op, line.Item, id, a, err)
}

// Confirm makes a reservation of an item permanent, as [Table.Confirm] does.
func (s *Store) Confirm(ctx context.Context, item, id string) error {
	return s.settle(ctx, "confirm", item, id, driver.StockConfirmed)
}

// Cancel releases the units that a reservation has of an item, as [Table.Cancel] does.
func (s *Store) Cancel(ctx context.Context, item, id string) error {
	return s.settle(ctx, "cancel", item, id, driver.StockCancelled)
}

func (s *Store) settle(ctx context.Context, op, item, id string, to driver.StockState) error {
	if err := validateName(op, "an item", item); err != nil {
		return err
	}
	if err := validateName(op, "a reservation", id); err != nil {
		return err
	}
	a, err := s.stock.Settle(ctx, item, id, to)
	err = s.judge(op, item, id, a, err)
	if a.Outcome == driver.StockUnknown {
		return &UnknownError{Reservation: id}
	}
	return err
}

// Show returns the numbers of units of an item. An unknown item has none.
func (s *Store) Show(ctx context.Context, item string) (driver.StockLevel, error) {
	if err := validateName("show stock", "an item", item); err != nil {
		return driver.StockLevel{}, err
	}
	return s.stock.Level(ctx, item)
}

// judge returns the error for an answer that differs from the request.
func (s *Store) judge(op, item, id string, a driver.StockAnswer, err error) error {
	if err != nil {
		return err
	}
	switch a.Outcome {
	case driver.StockDone:
		return nil
	case driver.StockShort:
		return short(s.observe, item, a.Want, a.Available)
	case driver.StockOther:
		return &ReusedError{ID: id}
	case driver.StockGone, driver.StockSettled:
		return &SettledError{Reservation: id, State: a.State}
	case driver.StockUnknown:
		return &UnknownError{Item: item}
	case driver.StockFull:
		return full(op, item)
	}
	return &interlock.Error{Op: op, Name: item, Kind: interlock.Uncertain, Err: errOutcome}
}
