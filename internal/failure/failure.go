// Package failure returns errors of the layer below to the caller: with the caller's
// operation, and with no stronger conclusion than is known. It creates no errors of its own
// but Bug and ErrNoReturn.
package failure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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

// Known reports whether err is nil, has a kind, or is the end of a context: a driver adds nothing to it.
func Known(err error) bool {
	var kind interface{ ErrorKind() interlock.ErrorKind }
	return err == nil || errors.As(err, &kind) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// SQLState returns the SQLSTATE in an error of a database; empty if it has none.
func SQLState(err error) string {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return ""
	}
	return state.SQLState()
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
	if !errors.As(err, &e) || e.Driver == "" || e.Kind == interlock.Uncertain {
		return About(op, name, err)
	}
	why := tableStates[SQLState(err)]
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

// Driver creates the errors of one driver, by its name.
type Driver string

// New returns an error of op on name, which may be empty.
func (d Driver) New(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: string(d), Name: name, Kind: kind, Err: err}
}

// Unsent returns the error of a ctx that ended before a request was sent.
func (d Driver) Unsent(ctx context.Context, op, name string) error {
	return d.New(op, name, interlock.Definite, context.Cause(ctx))
}

// Unanswered returns the error of a ctx that ended after a request was sent.
func (d Driver) Unanswered(ctx context.Context, op, name string) error {
	return d.New(op, name, interlock.Uncertain, context.Cause(ctx))
}

// Closed returns the error of a call after Close.
func (d Driver) Closed(op, name string) error {
	return d.New(op, name, interlock.Bug, interlock.ErrClosed)
}

// OfPart returns the error of op on name, which consists of several locks, from the error of one of
// them. A HeldError keeps its holder.
func (d Driver) OfPart(ctx context.Context, op, name string, err error) error {
	if held := (*interlock.HeldError)(nil); errors.As(err, &held) {
		return &interlock.HeldError{Name: name, Owner: held.Owner, Since: held.Since, Until: held.Until}
	}
	kind := interlock.Kind(err)
	if ctx.Err() != nil && kind == interlock.Uncertain {
		kind = interlock.Definite // the caller's own cause: nothing was acquired
	}
	return d.New(op, name, kind, err)
}

// EndedEarly adds to err, of work under a claim on name, that the claim had ended before the work.
func (d Driver) EndedEarly(op, name string, err, cause error) error {
	if cause == interlock.ErrReleased {
		return err
	}
	return errors.Join(err, d.New(op, name, interlock.Uncertain, cause))
}

// Pause waits before the next attempt to acquire name: for a time or a hint. It fails if ctx or the
// driver's life ends.
func (d Driver) Pause(ctx, life context.Context, name string, woken <-chan struct{}, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-life.Done():
		return d.New("acquire", name, interlock.Uncertain, interlock.ErrClosed)
	case <-ctx.Done():
		return d.Unanswered(ctx, "acquire", name)
	}
	return nil
}

// CheckNames rejects invalid names of locks and owners.
func (d Driver) CheckNames(op, name, owner string) error {
	if err := driver.CheckText("the name", name, 1, driver.MaxName); err != nil {
		return d.New(op, name, interlock.Bug, err)
	}
	if err := driver.CheckText("the owner", owner, 1, driver.MaxName); err != nil {
		return d.New(op, name, interlock.Bug, errors.New(err.Error())) // the name is valid
	}
	return nil
}

// CheckBreak rejects a break that cannot be recorded.
func (d Driver) CheckBreak(b driver.Break) error {
	if err := d.CheckNames("break", b.Name, b.Owner); err != nil {
		return err
	}
	for _, s := range []string{b.Reason, b.By} {
		if driver.CheckText("it", s, 1, driver.MaxName) != nil {
			return d.New("break", b.Name, interlock.Bug,
				fmt.Errorf("a reason and an author are required, of 1 to %d bytes of UTF-8 each", driver.MaxName))
		}
	}
	return nil
}
