package stock

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// A ShortError tells that there are too few units of an item. Nothing was done.
// It is Definite: others would have to give units back.
type ShortError struct {
	Item      string
	Want      int64 // how many units were to be taken
	Available int64 // how many there were
}

// Error tells how many are missing.
func (e *ShortError) Error() string {
	return fmt.Sprintf("too few units of %q: %d wanted, %d available", e.Item, e.Want, e.Available)
}

// ErrorKind is [interlock.Definite].
func (e *ShortError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ReusedError tells that the id of a reservation or an operation was used
// before, and for something else. Nothing was done. It is Definite.
type ReusedError struct {
	ID string
}

// Error names the id.
func (e *ReusedError) Error() string {
	return fmt.Sprintf("the id %q was used before, for other units", e.ID)
}

// ErrorKind is [interlock.Definite].
func (e *ReusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A SettledError reports that a reservation has another outcome than was asked
// for: it was cancelled, so it is not confirmed; it was confirmed, so it is not
// cancelled; it expired. Nothing was done. It is Definite.
type SettledError struct {
	Reservation string
	// State is what the reservation is. driver.StockExpired means that its time is
	// over; for a confirmation, that its units were given to others, too.
	State driver.StockState
}

// Error names the reservation and what it is.
func (e *SettledError) Error() string {
	return fmt.Sprintf("the reservation %q is %s", e.Reservation, e.State)
}

// ErrorKind is [interlock.Definite].
func (e *SettledError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// An UnknownError tells that there is no such item, or no such reservation to be
// confirmed: it was never made, or was forgotten. It is Definite.
type UnknownError struct {
	Item        string // empty if it is the reservation that is not known
	Reservation string
}

// Error names what is not known.
func (e *UnknownError) Error() string {
	if e.Item == "" {
		return fmt.Sprintf("there is no reservation %q", e.Reservation)
	}
	return fmt.Sprintf("there is no item %q: set its supply first", e.Item)
}

// ErrorKind is [interlock.Definite].
func (e *UnknownError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// errForgotten: between the statement that met an id and the one that looks what it
// was used for, somebody has swept it.
var errForgotten = &interlock.Error{Op: "look for what was recorded", Kind: interlock.Retryable,
	Err: errors.New("the id was forgotten just now: run the transaction again")}

// errOutcome: a driver answered what driver.Stock does not know.
var errOutcome = errors.New("the driver's answer has no outcome")

// short makes the refusal, and tells of it.
func short(tell observe.Stock, item string, want, available int64) error {
	if tell.Short != nil {
		tell.Short(observe.StockShort{Item: item, Want: want, Available: available})
	}
	return &ShortError{Item: item, Want: want, Available: available}
}

func full(op, item string) error {
	return &interlock.Error{Op: op, Name: item, Kind: interlock.Definite,
		Err: fmt.Errorf("the supply would exceed %d, the highest number", int64(driver.MaxQuantity))}
}

// named checks a name of an item, a reservation or an operation.
func named(op, what, name string) error {
	return driver.CheckName(op, what, name, driver.MaxName)
}
