package driver

import (
	"context"
	"fmt"
	"time"
)

// MaxQuantity is the maximum number of units of one item, and of one call. Every store counts
// exactly up to it.
const MaxQuantity = 1<<53 - 1

// A StockLevel is the number of units of an item at some instant of the store's clock.
type StockLevel struct {
	Supply int64 // the total
	Held   int64 // by reservations that have not expired
	Sold   int64 // by confirmed reservations
}

// Available returns the number of units that can be taken.
func (l StockLevel) Available() int64 { return l.Supply - l.Held - l.Sold }

// A StockHold is a request to reserve units of an item until they are confirmed or cancelled.
type StockHold struct {
	Item        string // 1 to MaxName bytes
	Reservation string // the id of the reservation: 1 to MaxName bytes, chosen by the caller
	N           int64  // 1 to MaxQuantity
	TTL         time.Duration
}

// A StockAdjustment is a request to change the supply of an item once.
type StockAdjustment struct {
	Item      string // 1 to MaxName bytes
	Operation string // the id of the adjustment: 1 to MaxName bytes, chosen by the caller
	Delta     int64  // not 0, at most MaxQuantity either way
	Floor     int64  // the minimum that must remain available if Delta is negative; 0 or more
}

// Check returns an error if a number of the hold is out of range.
func (h StockHold) Check() error {
	switch {
	case h.N < 1 || h.N > MaxQuantity:
		return fmt.Errorf("%d units: 1 to %d are allowed", h.N, int64(MaxQuantity))
	case h.TTL < time.Millisecond:
		return fmt.Errorf("a hold of %v: at least a millisecond is required", h.TTL)
	}
	return nil
}

// Check returns an error if a number of the adjustment is out of range.
func (a StockAdjustment) Check() error {
	switch {
	case a.Delta == 0 || a.Delta > MaxQuantity || a.Delta < -MaxQuantity:
		return fmt.Errorf("a difference of %d: it must not be 0, and at most %d", a.Delta, int64(MaxQuantity))
	case a.Floor < 0 || a.Floor > MaxQuantity:
		return fmt.Errorf("a floor of %d: 0 to %d are allowed", a.Floor, int64(MaxQuantity))
	case a.Take() > MaxQuantity:
		return fmt.Errorf("%d units and a floor of %d: no stock can have so many", -a.Delta, a.Floor)
	}
	return nil
}

// Take returns how many units must be available before the adjustment; 0 for a positive Delta.
func (a StockAdjustment) Take() int64 {
	if a.Delta > 0 {
		return 0
	}
	return a.Floor - a.Delta
}

// StockState is the state of a reservation of an item.
type StockState string

const (
	// StockHeld means that the reservation can be confirmed. This holds even after it expired,
	// until its units are given to others.
	StockHeld StockState = "held"
	// StockConfirmed means that the units are sold.
	StockConfirmed StockState = "confirmed"
	// StockCancelled means that the units were returned.
	StockCancelled StockState = "cancelled"
	// StockExpired means that the reservation expired and its units were given to others.
	StockExpired StockState = "expired"
)

// Settle returns the outcome of changing a reservation from state s to StockConfirmed or
// StockCancelled. If the outcome is StockDone and s is StockHeld, the store must make the
// change. Otherwise nothing changes.
func (s StockState) Settle(to StockState) StockOutcome {
	switch {
	case s == to, s == StockHeld, s == StockExpired && to == StockCancelled:
		return StockDone
	case s == StockExpired:
		return StockGone
	}
	return StockSettled
}

// A StockOutcome is the outcome of a request that was answered.
type StockOutcome int

const (
	// StockDone means that the request was applied, now or by an earlier request of the same
	// id.
	StockDone StockOutcome = iota + 1
	// StockShort means that there are too few units; nothing was done.
	StockShort
	// StockOther means that the id was used for something else; nothing was done.
	StockOther
	// StockGone means that the reservation has expired; nothing was done.
	StockGone
	// StockSettled means that the reservation was confirmed or cancelled before. It cannot
	// change any more.
	StockSettled
	// StockUnknown means that the item, or the reservation to confirm, does not exist.
	StockUnknown
	// StockFull means that the supply would exceed MaxQuantity; nothing was done.
	StockFull
)

// A StockAnswer is an outcome with its details.
type StockAnswer struct {
	Outcome   StockOutcome
	Want      int64      // StockShort: how many units were requested
	Available int64      // StockShort: how many units were available
	State     StockState // StockSettled and StockGone: the state of the reservation
}

// Stock stores items and their reservations in a key-value store. Each call is one atomic step
// by the store's clock. Repeating it after an Uncertain error converges. An error means that
// there was no answer, or that a name, number or duration is invalid (Bug). The outcome is then
// 0.
//
// When a reservation expires, its units are available at once, without any cleanup. They are
// taken from the reservations that expired first, and from no more of them than needed. Until
// then a late Settle can still confirm.
//
// The store removes a reservation or an operation some time after it expired or was done. Each
// store documents that time. Until then, requests with its id are compared with it.
type Stock interface {
	// Supply sets the total number of units, 0 to MaxQuantity, and creates the item. If the
	// number is below the units held and sold, the outcome is StockShort.
	Supply(ctx context.Context, item string, n int64) (StockAnswer, error)
	// Adjust adds units to the supply or removes available ones, once per operation of the
	// item. The outcome is StockDone, StockShort, StockFull or StockUnknown. If the operation
	// was done with another Delta, it is StockOther.
	Adjust(ctx context.Context, a StockAdjustment) (StockAnswer, error)
	// Hold takes units for a reservation. The outcome is StockDone, StockShort or StockUnknown.
	// If the reservation exists with another number of units of the item, it is StockOther. An
	// existing reservation is neither changed nor extended. The outcome is then StockDone if it
	// is held or confirmed, StockSettled if cancelled, and StockGone if expired.
	Hold(ctx context.Context, h StockHold) (StockAnswer, error)
	// Settle changes a reservation of an item to StockConfirmed or StockCancelled, as
	// [StockState.Settle] decides. If the reservation does not exist, confirming it returns
	// StockUnknown. Cancelling it returns StockDone and does not prevent a later Hold.
	Settle(ctx context.Context, item, reservation string, to StockState) (StockAnswer, error)
	// Level returns the level of an item, or the zero StockLevel if the item does not exist.
	Level(ctx context.Context, item string) (StockLevel, error)
}
