package postgres

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
)

// A stage is where a transaction was when an error came.
//
// Before inCommit the client's word that an error is safe to retry is taken:
// where a connection is gone, COMMIT can no longer be sent on it. From inCommit
// on it is not, because pgx says the same of a connection that ended after
// COMMIT had left.
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

// failed is nil for a nil err, and otherwise says what may be concluded from
// it. An error after ctx ended wraps the cause.
func failed(ctx context.Context, at stage, err error) error {
	if err == nil {
		return nil
	}
	kind := kindOf(at, err, ctx.Err() != nil)
	var state sqlState
	if errors.As(err, &state) && state.SQLState() == lockNotAvailable {
		err = fmt.Errorf("%w: %w", interlock.ErrHeld, err)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return &interlock.Error{Op: at.String(), Driver: "postgres", Kind: kind, Err: err}
}

// classify gives an error of user code its kind if it comes from the database,
// in a transaction that will not be committed, and leaves every other as it is.
func classify(err error) error {
	var known interface{ ErrorKind() interlock.ErrorKind }
	switch {
	case err == nil, errors.As(err, &known), !fromDatabase(err),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return failed(context.Background(), inAbandoned, err)
}

type sqlState interface{ SQLState() string }

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

// kindOf judges err. ended says that the caller's context has ended.
func kindOf(at stage, err error, ended bool) interlock.ErrorKind {
	unsent := at == inBegin || at < inCommit && pgconn.SafeToRetry(err)
	var state sqlState
	switch {
	case errors.As(err, &state):
		return kindOfState(at, state.SQLState())
	case unsent && ended:
		return interlock.Definite
	case unsent, at == inAbandoned:
		return interlock.Retryable
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return interlock.Definite // the transaction had failed before
	case at == inStatement && (errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone)):
		return interlock.Definite
	}
	return interlock.Uncertain
}

// lockNotAvailable: a row or lock was not to be had at once, or not in time.
const lockNotAvailable = "55P03"

// kindOfState judges by SQLSTATE; see the appendix "PostgreSQL Error Codes" of
// its manual.
func kindOfState(at stage, code string) interlock.ErrorKind {
	switch code {
	case "40001", // serialization_failure
		"40P01", // deadlock_detected
		lockNotAvailable,
		"25P03", // idle_in_transaction_session_timeout: strikes only between statements
		"25P04", // transaction_timeout
		"53300": // too_many_connections
		return interlock.Retryable
	}
	switch {
	case at == inCommit || at == inRollback:
		if endsSession(code) || inTrouble(code) {
			return interlock.Uncertain
		}
	case at == inStatement && inTrouble(code) && !strings.HasPrefix(code, "XX"):
		return interlock.Uncertain
	case endsSession(code), inTrouble(code):
		return interlock.Retryable
	}
	return interlock.Definite
}

// endsSession reports whether code tells that the server ended the session, or
// did not let it begin. A COMMIT that was under way may have been done.
func endsSession(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P05":
		return true
	}
	return false
}

// inTrouble reports whether code tells of a broken connection or server.
func inTrouble(code string) bool {
	return code == "40003" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "58") ||
		strings.HasPrefix(code, "XX")
}
