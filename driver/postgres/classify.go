package postgres

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A stage is where a transaction was when an error came.
//
// Before inCommit, an error that the client calls safe to retry is Retryable: COMMIT
// cannot be sent on a lost connection. From inCommit on it is not, because pgx says
// the same of a connection that ended after COMMIT was sent.
type stage int

const (
	inBegin     stage = iota // nothing can have happened
	inStatement              // COMMIT has not been sent by us
	inAbandoned              // nor will it be
	inUnsent                 // COMMIT was called for, when it could not be sent any more
	inCommit
	inRollback
)

func (s stage) String() string {
	return [...]string{"begin transaction", "run statement", "run statement", "commit", "commit", "roll back"}[s]
}

// failed returns nil for a nil err, and otherwise classifies it. An error after ctx ended
// wraps the cause.
func failed(ctx context.Context, at stage, err error) error {
	if err == nil {
		return nil
	}
	kind := kindOf(at, err, ctx.Err() != nil)
	var state sqlState
	if errors.As(err, &state) && state.SQLState() == lockNotAvailable && kind == interlock.Retryable {
		err = fmt.Errorf("%w: %w", interlock.ErrHeld, err)
	}
	return &interlock.Error{Op: at.String(), Driver: string(fail), Kind: kind, Err: driver.WithCause(ctx, onOneLine(err))}
}

// classify gives an error of user code its kind if it comes from the database,
// in a transaction that will not be committed. It returns every other error as it is.
func classify(err error) error {
	var known interface{ ErrorKind() interlock.ErrorKind }
	switch {
	case err == nil, errors.As(err, &known), !fromDatabase(err),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return failed(context.Background(), inAbandoned, err)
}

func fromDatabase(err error) bool {
	var state sqlState
	var network net.Error
	if errors.As(err, &network) || errors.As(err, &state) || pgconn.SafeToRetry(err) {
		return true
	}
	for _, e := range []error{pgconn.ErrConnClosed, sqldriver.ErrBadConn, sql.ErrConnDone, io.ErrUnexpectedEOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// kindOf classifies err. ended: the caller's context has ended.
func kindOf(at stage, err error, ended bool) interlock.ErrorKind {
	unsent := at == inBegin || at < inCommit && pgconn.SafeToRetry(err)
	var state sqlState
	switch {
	case errors.As(err, &state):
		return kindOfAnswer(at, state)
	case unsent && ended:
		return interlock.Definite
	case at < inCommit && driver.NeverSent(err):
		return interlock.Retryable
	case unsent, at == inAbandoned:
		return interlock.Retryable
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return interlock.Definite // the transaction had failed before
	case at == inStatement && (errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone)):
		return interlock.Definite
	}
	return interlock.Uncertain
}
