package postgres

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
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
	if failure.Known(err) || !fromDatabase(err) {
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

type sqlState interface{ SQLState() string }

// lockNotAvailable: a row or lock was not free at once, or in time.
const lockNotAvailable = "55P03"

// kindOfAnswer classifies an error of the server; see the appendix "PostgreSQL Error Codes"
// of its manual.
func kindOfAnswer(at stage, answer sqlState) interlock.ErrorKind {
	code := answer.SQLState()
	switch {
	case at == inCommit || at == inRollback:
		return atCommit(answer)
	case beforeCommit[code]:
		return interlock.Retryable
	case at == inStatement && isBroken(code) && !strings.HasPrefix(code, "XX"):
		return interlock.Uncertain
	case endsSession(code), isBroken(code):
		return interlock.Retryable
	}
	return interlock.Definite
}

// beforeCommit are the errors after which the same transaction may succeed, where
// COMMIT was not sent.
var beforeCommit = map[string]bool{
	"40001":          true, // serialization_failure
	"40P01":          true, // deadlock_detected
	lockNotAvailable: true,
	"25P03":          true, // idle_in_transaction_session_timeout
	"25P04":          true, // transaction_timeout
	"53000":          true, // insufficient_resources
	"53100":          true, // disk_full
	"53200":          true, // out_of_memory
	"53300":          true, // too_many_connections
}

// endsSession reports whether the server ended the session, or did not let it
// begin.
func endsSession(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P05":
		return true
	}
	return false
}

// isBroken reports a broken connection or server.
func isBroken(code string) bool {
	return code == "40003" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "58") ||
		strings.HasPrefix(code, "XX")
}

// answersToCommit classifies an error of COMMIT by the beginning of its SQLSTATE. The
// first line that fits counts.
//
// The server replies before its commit record is written or after. Before, it runs
// deferred triggers and constraints, and their errors roll the transaction back.
// While it writes the record it ignores signals. If it logs the duration of the COMMIT,
// it obeys a pending signal before it replies: then it reports a cancelled query or an
// ended session after the commit. A timeout works by such a signal; a lock timeout can
// occur as the lock is granted. A server that is short of memory or disk can fail before
// or after.
var answersToCommit = []struct {
	state string
	kind  interlock.ErrorKind
}{
	{"40001", interlock.Retryable}, // serialization_failure: judged before the record
	{"40P01", interlock.Retryable}, // deadlock_detected: found while a lock is waited for
	{"25P03", interlock.Retryable}, // idle_in_transaction_session_timeout: strikes before COMMIT is read, or not at all
	{"40003", interlock.Uncertain}, // statement_completion_unknown, by its name
	{"25P04", interlock.Uncertain}, // transaction_timeout: a signal
	{lockNotAvailable, interlock.Uncertain},
	{"08", interlock.Uncertain}, // the connection
	{"53", interlock.Uncertain}, // resources
	{"57", interlock.Uncertain}, // operator: a cancelled query, the end of the session or the server
	{"58", interlock.Uncertain}, // the system below
	{"XX", interlock.Uncertain}, // internal
	{"", interlock.Definite},    // a constraint, or what a trigger raised
}

// atCommit classifies an error of COMMIT. If the server or a pooler ends the connection
// with it, the outcome is unknown. Exceptions are the idle timeout, and a conflict on a
// standby, which had nothing to commit.
func atCommit(answer sqlState) interlock.ErrorKind {
	for _, line := range answersToCommit {
		if !strings.HasPrefix(answer.SQLState(), line.state) {
			continue
		}
		if line.kind == interlock.Definite && isLast(answer) {
			return interlock.Uncertain
		}
		return line.kind
	}
	return interlock.Uncertain
}

// isLast reports whether the server ended the session with its answer. Only pgx shows
// that.
func isLast(answer sqlState) bool {
	native, ok := answer.(*pgconn.PgError)
	return ok && (native.SeverityUnlocalized == "FATAL" || native.SeverityUnlocalized == "PANIC")
}

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
	if errors.As(err, new(*interlock.Error)) {
		return failure.About(op, name, err)
	}
	unanswered, at := interlock.Uncertain, inCommit
	if dial := (*pgconn.ConnectError)(nil); errors.As(err, &dial) { // nothing was sent
		unanswered, at = interlock.Retryable, inBegin
	}
	return problem(op, name, kindOr(unanswered, at, err), driver.WithCause(ctx, err))
}

// isUndefined reports that a table is missing, so that nothing was done.
func isUndefined(err error) bool { return hasState(err, undefinedTable) }
