package mysql

import (
	"context"
	"errors"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

var errNoAnswer = errors.New("the server did not answer in time")

// fail creates the errors of this package.
const fail = failure.Driver("mariadb")

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return fail.New(op, name, kind, err)
}

// ofStatement adds the kind to the error of one statement that is a transaction. A statement that the
// server refused is undone.
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
		kind = interlock.Uncertain // the statement may have been done
	}
	return problem(op, name, kind, explained(ctx, err))
}

// ofRead is ofStatement for statements that change nothing.
func ofRead(ctx context.Context, op, name string, err error) error {
	err = ofStatement(ctx, op, name, err)
	if err != nil && ctx.Err() == nil && interlock.Kind(err) == interlock.Uncertain {
		return problem(op, name, interlock.Retryable, errors.Unwrap(err))
	}
	return err
}
