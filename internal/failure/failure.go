// Package failure passes errors of the layer below on to the caller: what was tried
// is said in the caller's words, and what may be concluded is never more than was
// known. It makes no errors of its own but Bug.
package failure

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// Bug is a broken rule: nothing was done.
func Bug(op, name, format string, args ...any) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
}

// About tells a driver's error as one of op on name, with its driver, its kind and its
// reason. Any other error, nil too, comes back as it is: it has been told already.
func About(op, name string, err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Driver == "" {
		return err
	}
	return &interlock.Error{Op: op, Driver: e.Driver, Name: name, Kind: e.Kind, Err: e.Err}
}

// Uncommitted makes a driver's error of unknown outcome Retryable: what a statement did
// does not matter in a transaction that is never committed. What it was wrapped in stays.
// Any other error comes back as it is.
func Uncommitted(err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Driver == "" || e.Kind != interlock.Uncertain {
		return err
	}
	why := e.Err
	if err != error(e) {
		why = known{err}
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: interlock.Retryable, Err: why}
}

// known is an error whose outcome is not unknown any more.
type known struct{ error }

func (k known) As(target any) bool { return errors.As(k.error, target) }

func (k known) Is(target error) bool {
	return target != interlock.ErrUncertain && errors.Is(k.error, target)
}

// MissingTable reports whether a database, PostgreSQL or MariaDB, says that there is
// no such table.
func MissingTable(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && (state.SQLState() == "42P01" || state.SQLState() == "42S02")
}
