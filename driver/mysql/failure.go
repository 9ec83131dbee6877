package mysql

import (
	"context"
	"errors"
	"fmt"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var errNoWord = errors.New("the server did not answer in time")

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: "mysql", Name: name, Kind: kind, Err: err}
}

func unsent(ctx context.Context, op, name string) error {
	return problem(op, name, interlock.Definite, context.Cause(ctx))
}

func unanswered(ctx context.Context, op, name string) error {
	return problem(op, name, interlock.Uncertain, context.Cause(ctx))
}

func closedError(op, name string) error { return problem(op, name, interlock.Bug, interlock.ErrClosed) }

// ofStatement gives an error of one statement, a transaction of its own, its
// kind. What the server refused it has undone.
func ofStatement(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	var native *client.MySQLError
	var known *interlock.Error
	kind := kindOf(inStatement, err, ctx.Err() != nil)
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &native) && (native.Number == statementTime || native.Number == interrupted || native.Number == noTable):
		kind = interlock.Retryable
	case errors.As(err, &native) && endsSession(native.Number):
		kind = interlock.Uncertain // it may have been done before
	}
	return problem(op, name, kind, explained(ctx, err))
}

// ofLook is ofStatement for what changes nothing.
func ofLook(ctx context.Context, op, name string, err error) error {
	err = ofStatement(ctx, op, name, err)
	if err != nil && ctx.Err() == nil && interlock.Kind(err) == interlock.Uncertain {
		return problem(op, name, interlock.Retryable, errors.Unwrap(err))
	}
	return err
}

// named refuses what the tables, or the guard's, cannot hold.
func named(op, name, owner string) error {
	if err := driver.CheckText("the name", name, 1, driver.MaxName); err != nil {
		return problem(op, name, interlock.Bug, err)
	}
	if owner == "" || len(owner) > driver.MaxName {
		return problem(op, name, interlock.Bug, fmt.Errorf("the owner must be 1 to %d bytes", driver.MaxName))
	}
	return nil
}

func breakable(b driver.Break) error {
	if err := named("break", b.Name, b.Owner); err != nil {
		return err
	}
	for _, s := range []string{b.Reason, b.By} {
		if s == "" || len(s) > driver.MaxName {
			return problem("break", b.Name, interlock.Bug,
				fmt.Errorf("a reason and who says so are needed, of 1 to %d bytes each", driver.MaxName))
		}
	}
	return nil
}
