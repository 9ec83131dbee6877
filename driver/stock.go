package driver

import (
	"context"
	"fmt"
	"time"
)

// MaxQuantity is the highest number of units of one item, and the greatest that
// one call takes or adds. Every store counts exactly up to there.
const MaxQuantity = 1<<53 - 1

// A StockLevel is how many units of an item there are, at some instant of the
// store's clock.
type StockLevel struct {
	Supply int64 // in all
	Held   int64 // for reservations that have not expired
	Sold   int64 // to reservations that were confirmed
}

// Available is how many units can be taken.
func (l StockLevel) Available() int64 { return l.Supply - l.Held - l.Sold }

// A StockHold asks for units of an item until they are confirmed or cancelled.
type StockHold struct {
	Item        string // 1 to MaxName bytes
	Reservation string // who holds them: 1 to MaxName bytes, chosen by the caller
	N           int64  // 1 to MaxQuantity
	TTL         time.Duration
}

// A StockAdjustment changes the supply of an item by a difference, once.
type StockAdjustment struct {
	Item      string // 1 to MaxName bytes
	Operation string // what is done once: 1 to MaxName bytes, chosen by the caller
	Delta     int64  // not 0, at most MaxQuantity either way
	Floor     int64  // so many must be available afterwards if Delta is negative; 0 or more
}

// Check says what is wrong with the numbers of a hold; nil is nothing.
func (h StockHold) Check() error {
	switch {
	case h.N < 1 || h.N > MaxQuantity:
		return fmt.Errorf("%d units: 1 to %d are allowed", h.N, int64(MaxQuantity))
	case h.TTL < time.Millisecond:
		return fmt.Errorf("a hold of %v: at least a millisecond is required", h.TTL)
	}
	return nil
}

// Check says what is wrong with the numbers of an adjustment; nil is nothing.
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

// Take is how many units must be available before it; 0 for a positive Delta.
func (a StockAdjustment) Take() int64 {
	if a.Delta > 0 {
		return 0
	}
	return a.Floor - a.Delta
}

// StockState is the state of a reservation of an item.
type StockState string

const (
	// StockHeld: it can be confirmed, also after it expired, until others take
	// its units.
	StockHeld StockState = "held"
	// StockConfirmed: its units are sold.
	StockConfirmed StockState = "confirmed"
	// StockCancelled: its units were given back.
	StockCancelled StockState = "cancelled"
	// StockExpired: it expired, and its units were given to others.
	StockExpired StockState = "expired"
)

// Settle tells what comes of a wish to bring a reservation from this state to
// another, StockConfirmed or StockCancelled. If it is StockDone and the state is
// StockHeld there is something to do, otherwise it was done before.
func (s StockState) Settle(to StockState) StockOutcome {
	switch {
	case s == to, s == StockHeld, s == StockExpired && to == StockCancelled:
		return StockDone
	case s == StockExpired:
		return StockGone
	}
	return StockSettled
}

// A StockOutcome is what came of a request that was answered.
type StockOutcome int

const (
	// StockDone: it is done, now or by an earlier request of the same id.
	StockDone StockOutcome = iota + 1
	// StockShort: there are too few units; nothing was done.
	StockShort
	// StockOther: the id was used for something else; nothing was done.
	StockOther
	// StockGone: the reservation has expired; nothing was done.
	StockGone
	// StockSettled: the reservation was confirmed, or was cancelled, before, and
	// is not changed any more.
	StockSettled
	// StockUnknown: there is no such item, or no such reservation to confirm.
	StockUnknown
	// StockFull: the supply would exceed MaxQuantity; nothing was done.
	StockFull
)

// A StockAnswer is an outcome with its details.
type StockAnswer struct {
	Outcome   StockOutcome
	Want      int64      // StockShort: how many units were to be taken
	Available int64      // StockShort: how many there were
	State     StockState // StockSettled, and StockGone: the state of the reservation
}

// Stock keeps items and their reservations in a key-value store. Each call is
// one atomic step by the store's own clock, and repeating it after an Uncertain
// answer converges. An error says that there was no answer, or a name, number or
// duration cannot be (Bug), and the outcome is 0.
//
// Units of a reservation that expired are available again at once, whether or
// not anything has run meanwhile. They are taken from the reservations that
// expired first, and from no more of them than needed: until then a late Settle
// can still confirm.
//
// A reservation and an operation are forgotten some time after they expired or
// were done; the store says when. Until then they are compared with.
type Stock interface {
	// Supply sets how many units there are in all, 0 to MaxQuantity, and makes the
	// item known. It is StockShort if that is less than what is held and sold.
	Supply(ctx context.Context, item string, n int64) (StockAnswer, error)
	// Adjust adds to the supply or takes from what is available, once for each
	// operation of the item: StockDone, StockShort, StockFull, StockUnknown, or
	// StockOther if the operation was done with another Delta.
	Adjust(ctx context.Context, a StockAdjustment) (StockAnswer, error)
	// Hold takes units for a reservation: StockDone, StockShort, StockUnknown, or
	// StockOther if the reservation has another number of units of the item. If
	// the reservation is there it is not changed, nor prolonged: StockDone if it
	// is held or confirmed, StockSettled if cancelled, StockGone if expired.
	Hold(ctx context.Context, h StockHold) (StockAnswer, error)
	// Settle brings a reservation of an item to StockConfirmed or StockCancelled,
	// as [StockState.Settle] judges. If there is none, cancelling is StockDone,
	// and does not keep it from being held later; confirming is StockUnknown.
	Settle(ctx context.Context, item, reservation string, to StockState) (StockAnswer, error)
	// Level shows an item; one that is not known has the zero StockLevel.
	Level(ctx context.Context, item string) (StockLevel, error)
}
