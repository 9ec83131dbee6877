package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// fail makes the errors of this package that are not the client's.
const fail = failure.Driver("postgres")

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return fail.New(op, name, kind, onOneLine(err))
}

// A connectError says in one line why there is no connection: pgx reports every attempt on a
// line of its own, with TLS and without.
type connectError struct {
	error
	all *pgconn.ConnectError
}

func (e *connectError) Error() string {
	lines := strings.Split(e.all.Unwrap().Error(), "\n")
	slices.Sort(lines)
	return strings.ReplaceAll(e.error.Error(), e.all.Error(), strings.Join(slices.Compact(lines), "; "))
}

func (e *connectError) Unwrap() error { return e.error }

func onOneLine(err error) error {
	var c *pgconn.ConnectError
	var done *connectError
	if errors.As(err, &c) && !errors.As(err, &done) {
		return &connectError{err, c}
	}
	return err
}

// ofAnswer classifies an answer that is an error. What the server refused was rolled
// back.
func ofAnswer(op, name string, a answer) error {
	if a.err == nil {
		return nil
	}
	kind := interlock.Uncertain
	var native *pgconn.PgError
	var implausible *driver.ImplausibleError
	switch {
	case errors.As(a.err, &implausible):
		kind = interlock.Definite
	case a.sent == 0:
		kind = interlock.Retryable
	case !a.over && errors.As(a.err, &native):
		kind = kindOfAnswer(inBegin, native)
		if native.Code == "57014" || isSessionInvalid(native) { // query_canceled: it took too long
			kind = interlock.Retryable
		}
	}
	return problem(op, name, kind, a.err)
}

// isSessionInvalid reports that the tables or the prepared statements of a session are
// missing: they were removed, or another server process answered. The next session creates
// them again.
func isSessionInvalid(err error) bool {
	if err == nil {
		return false
	}
	var native *pgconn.PgError
	return errors.As(err, &native) && (native.Code == undefinedTable || native.Code == "26000")
}

const undefinedTable = "42P01"

// ofOpening classifies the error of opening a session: no request was sent.
func ofOpening(op, name string, err error) error {
	return problem(op, name, kindOr(interlock.Retryable, inBegin, err), fmt.Errorf("no session: %w", err))
}

// kindOr returns the kind of err if it has one, or that of the server's answer; otherwise it
// returns unanswered.
func kindOr(unanswered interlock.ErrorKind, at stage, err error) interlock.ErrorKind {
	var known interface{ ErrorKind() interlock.ErrorKind }
	var native *pgconn.PgError
	switch {
	case errors.As(err, &known):
		return known.ErrorKind()
	case errors.As(err, &native):
		return kindOfAnswer(at, native)
	}
	return unanswered
}

// ofStatement classifies the error of a statement that is a transaction of its own. What the
// server refused was not done; without an answer it may have been.
func ofStatement(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	unanswered := interlock.Uncertain
	if dial := (*pgconn.ConnectError)(nil); errors.As(err, &dial) {
		unanswered = interlock.Retryable
	}
	return problem(op, name, kindOr(unanswered, inCommit, err), driver.WithCause(ctx, err))
}

// isUndefined reports that a table is missing, so that nothing was done.
func isUndefined(err error) bool { return hasState(err, undefinedTable) }
