package stock

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// A ShortError means that there are too few units of an item. Nothing was done. It is Definite:
// others would have to release units.
type ShortError struct {
	Item      string
	Want      int64 // how many units were to be taken
	Available int64 // how many there were
}

// Error names the wanted and the available number.
func (e *ShortError) Error() string {
	return fmt.Sprintf("too few units of %q: %d wanted, %d available", e.Item, e.Want, e.Available)
}

// ErrorKind returns [interlock.Definite].
func (e *ShortError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ReusedError means that the id of a reservation or an operation was used before, for
// something else. Nothing was done. It is Definite.
type ReusedError struct {
	ID string
}

// Error names the id.
func (e *ReusedError) Error() string {
	return fmt.Sprintf("the id %q was used before, for other units", e.ID)
}

// ErrorKind returns [interlock.Definite].
func (e *ReusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A SettledError means that a reservation already has another outcome. If it was cancelled, it
// cannot be confirmed; if it was confirmed, it cannot be cancelled; or it has expired. Nothing
// was done. It is Definite.
type SettledError struct {
	Reservation string
	// State is the state of the reservation. driver.StockExpired means that its time is over;
	// for a confirmation, also that others have its units.
	State driver.StockState
}

// Error names the reservation and its state.
func (e *SettledError) Error() string {
	return fmt.Sprintf("the reservation %q is %s", e.Reservation, e.State)
}

// ErrorKind returns [interlock.Definite].
func (e *SettledError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// An UnknownError means that there is no such item, or no such reservation to confirm: it was
// never made, or was deleted by a sweep. It is Definite.
type UnknownError struct {
	Item        string // empty if it is the reservation that is not known
	Reservation string
}

// Error names the unknown item or reservation.
func (e *UnknownError) Error() string {
	if e.Item == "" {
		return fmt.Sprintf("there is no reservation %q", e.Reservation)
	}
	return fmt.Sprintf("there is no item %q: set its supply first", e.Item)
}

// ErrorKind returns [interlock.Definite].
func (e *UnknownError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// errForgotten means that a sweep deleted an id between the statement that met it and the one
// that reads its use.
var errForgotten = &interlock.Error{Op: "look for what was recorded", Kind: interlock.Retryable,
	Err: errors.New("the id was deleted just now: repeat the transaction")}

// errOutcome means that a driver returned an answer that driver.Stock does not define.
var errOutcome = errors.New("the driver's answer has no outcome")

// short returns a ShortError, and reports it.
func short(hooks observe.Stock, item string, want, available int64) error {
	report.Now(hooks.Short, observe.StockShort{Item: item, Want: want, Available: available})
	return &ShortError{Item: item, Want: want, Available: available}
}

func full(op, item string) error {
	return &interlock.Error{Op: op, Name: item, Kind: interlock.Definite,
		Err: fmt.Errorf("the supply would exceed %d, the maximum", int64(driver.MaxQuantity))}
}

// validateName validates the name of an item, a reservation or an operation.
func validateName(op, what, name string) error {
	return driver.CheckName(op, what, name, driver.MaxName)
}
