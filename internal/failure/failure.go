// Package failure returns errors of the layer below to the caller: with the caller's
// operation, and with no stronger conclusion than is known. It creates no errors of its own
// but Bug and ErrNoReturn.
package failure

import (
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
)

// Bug returns the error of a broken rule: nothing was done.
func Bug(op, name, format string, args ...any) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
}

// ErrNoReturn is the cause when a function of the user ended its goroutine. Its kind is Uncertain.
var ErrNoReturn = errors.New("it ended its goroutine, as runtime.Goexit and a test's FailNow do")

// About returns a driver's error as one of op on name, with its driver, kind and reason. It
// returns any other error, and nil, unchanged: it already has its operation.
func About(op, name string, err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Driver == "" {
		return err
	}
	return &interlock.Error{Op: op, Driver: e.Driver, Name: name, Kind: e.Kind, Err: e.Err}
}

// Uncommitted makes a driver's error of unknown outcome Retryable: an effect does not matter
// in a transaction that is never committed. Its wrappers stay. It returns any other error
// unchanged.
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

// known is an error whose outcome is now known.
type known struct{ error }

func (k known) As(target any) bool { return errors.As(k.error, target) }

func (k known) Is(target error) bool {
	return target != interlock.ErrUncertain && errors.Is(k.error, target)
}

const missing, denied = "a table is missing", "the user may not use or create a table"

// tableStates are the SQLSTATEs, of PostgreSQL and of MariaDB, of statements on a table that
// is missing or that another version created. MariaDB has none for a missing right.
var tableStates = map[string]string{
	"42501": denied,
	"42P01": missing, "42S02": missing,
	"42703": "a table does not have the columns of this version of Interlock", "42S22": "a table does not have the columns of this version of Interlock",
	"23502": "a table has a column that this version of Interlock does not know",
}

// Table works like About, for statements on tables of Interlock. It explains a table that is
// missing, older or newer, and a missing right: the error is Definite and names the command that
// prints the tables and the rights. part is their name in that command. Empty means tables with
// the user's columns, of which only a missing one is explained. An unknown outcome stays so.
func Table(op, name, part string, err error) error {
	if err == nil {
		return nil
	}
	var e *interlock.Error
	var state interface{ SQLState() string }
	if !errors.As(err, &e) || e.Driver == "" || e.Kind == interlock.Uncertain || !errors.As(err, &state) {
		return About(op, name, err)
	}
	why := tableStates[state.SQLState()]
	if why == "" || part == "" && why != missing {
		return About(op, name, err)
	}
	next := "create it with Create, or as your own tables"
	database, _, _ := strings.Cut(e.Driver, " ")
	switch {
	case why == denied:
		next = fmt.Sprintf("let its owner apply what \"interlock schema %s --only %s --grant-to USER\" prints", database, part)
	case part != "":
		next = fmt.Sprintf("create it with Create, or apply what \"interlock schema %s --only %s\" prints", database, part)
	}
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: fmt.Errorf("%s; %s: %w", why, next, err)}
}
