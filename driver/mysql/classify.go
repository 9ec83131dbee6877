package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A stage is the state of a transaction at an error.
type stage int

const (
	inBegin     stage = iota // nothing was done
	inStatement              // COMMIT was not sent
	inAbandoned              // COMMIT will not be sent
	inCommit
	inRollback
)

func (s stage) String() string {
	return [...]string{"begin transaction", "run statement", "run statement", "commit", "roll back"}[s]
}

// failed returns nil for a nil err, and otherwise classifies it. An error after ctx ended
// wraps the cause.
func failed(ctx context.Context, at stage, err error) error {
	if err == nil {
		return nil
	}
	kind := kindOf(at, err, ctx.Err() != nil)
	if isNumber(err, lockWaitTimeout) || isNumber(err, lockNoWait) {
		err = fmt.Errorf("%w: %w", interlock.ErrHeld, err)
	}
	return &interlock.Error{Op: at.String(), Driver: string(fail), Kind: kind, Err: explained(ctx, err)}
}

// explained adds the SQLSTATE and the cause of ctx to the client's error.
func explained(ctx context.Context, err error) error {
	var native *client.MySQLError
	if errors.As(err, &native) {
		err = &serverError{err, native}
	}
	return driver.WithCause(ctx, err)
}

// serverError adds the method SQLState to the server's error, for guards, which do not use the
// client library.
type serverError struct {
	error
	native *client.MySQLError
}

func (e *serverError) Unwrap() error { return e.error }

// noDefault is the number of an INSERT that leaves out a column without a default. Its
// SQLSTATE is that of many errors, HY000.
const noDefault = 1364

// SQLState returns the code of five characters; for noDefault that of PostgreSQL.
func (e *serverError) SQLState() string {
	if e.native.Number == noDefault {
		return "23502"
	}
	return string(e.native.SQLState[:])
}

// classify adds the kind to an error of user code from the database, in a transaction that will not
// be committed. It returns any other error unchanged.
func classify(err error) error {
	if failure.Known(err) || !fromDatabase(err) {
		return err
	}
	return failed(context.Background(), inAbandoned, err)
}

func fromDatabase(err error) bool {
	var native *client.MySQLError
	var network net.Error
	return errors.As(err, &native) || errors.As(err, &network) || broken(err)
}

// broken reports whether the client cannot use the connection any more.
func broken(err error) bool {
	for _, e := range []error{sqldriver.ErrBadConn, client.ErrInvalidConn, client.ErrBusyBuffer, client.ErrPktSync,
		client.ErrPktSyncMul, client.ErrMalformPkt, sql.ErrConnDone, io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// kindOf classifies err. ended reports whether the caller's context has ended.
func kindOf(at stage, err error, ended bool) interlock.ErrorKind {
	// ErrBadConn means that nothing of this request was sent. The connection is closed, so
	// COMMIT can no longer be sent on it.
	unsent := at == inBegin || at < inCommit && errors.Is(err, sqldriver.ErrBadConn)
	var native *client.MySQLError
	switch {
	case errors.As(err, &native):
		return kindOfNumber(at, native.Number)
	case unsent && ended:
		return interlock.Definite
	case at < inCommit && driver.NeverSent(err):
		return interlock.Retryable
	case unsent, at == inAbandoned:
		return interlock.Retryable
	case errors.Is(err, errFailedBefore):
		return interlock.Definite
	case at == inStatement && errors.Is(err, sql.ErrTxDone), errors.Is(err, client.ErrPktTooLarge):
		return interlock.Definite
	}
	return interlock.Uncertain
}

// Numbers of the server's errors; see "MariaDB Error Codes" of its manual.
const (
	checkRead       = 1020 // the row changed since the snapshot was taken
	tooMany         = 1040 // connections
	unknownCommand  = 1047 // also from a Galera node that is not ready
	shutdown        = 1053
	lockWaitTimeout = 1205 // also of NOWAIT; the statement is undone, not the transaction
	lockTableFull   = 1206 // too little memory for locks; the transaction is undone
	deadlock        = 1213 // the transaction is undone
	tooManyOfUser   = 1203
	limitOfUser     = 1226
	noSavepoint     = 1305
	killed          = 1927 // the connection
	lockNoWait      = 3572 // ER_LOCK_NOWAIT, which MariaDB itself does not send
	noSuchThread    = 1094
	tableFull       = 1114 // also a full disk
	noTable         = 1146
	unknownVariable = 1193
	interrupted     = 1317
	statementTime   = 1969 // max_statement_time

	readOnly            = 1290 // the server runs with --read-only
	readOnlyTransaction = 1792
	readOnlyMode        = 1836
)

// kindOfNumber classifies the server's answer.
func kindOfNumber(at stage, number uint16) interlock.ErrorKind {
	sure, ok := undone[number]
	switch {
	case ok:
		return sure
	case at == inCommit, at == inRollback:
		return interlock.Uncertain
	case endsSession(number), exhausted(number):
		return interlock.Retryable
	}
	return interlock.Definite
}

// undone has the errors after which nothing was done, also as an answer to COMMIT: the server
// detects them before it commits in any engine. All others may follow a complete or partial
// commit: a killed statement or session, a timeout, a failed engine or binary log.
var undone = map[uint16]interlock.ErrorKind{
	checkRead:       interlock.Retryable,
	lockWaitTimeout: interlock.Retryable, // of COMMIT: it waited for a backup, or FLUSH TABLES WITH READ LOCK
	lockNoWait:      interlock.Retryable,
	deadlock:        interlock.Retryable, // of COMMIT: a node of Galera did not certify it
	lockTableFull:   interlock.Retryable,
	tooMany:         interlock.Retryable,
	tooManyOfUser:   interlock.Retryable,
	limitOfUser:     interlock.Retryable,
	unknownCommand:  interlock.Retryable,

	readOnly:            interlock.Definite,
	readOnlyTransaction: interlock.Definite,
	readOnlyMode:        interlock.Definite,
}

func isReadOnly(number uint16) bool { return undone[number] == interlock.Definite }

// endsSession reports whether the server ended or refused the session.
func endsSession(number uint16) bool {
	switch number {
	case shutdown, killed,
		1080,       // forced close
		1152, 1184, // aborted connection
		1158, 1159, 1160, 1161: // errors of reading and writing
		return true
	}
	return false
}

// exhausted reports whether the server was short of disk or memory.
func exhausted(number uint16) bool {
	switch number {
	case 1021, tableFull, 1037, 1038, 1041:
		return true
	}
	return false
}

// dooms reports whether err must prevent the commit of the transaction. A deadlock has undone it, and
// later statements would run outside it. A wait that timed out has undone only one of its statements.
func dooms(err error) bool {
	var native *client.MySQLError
	return errors.As(err, &native) && kindOfNumber(inStatement, native.Number) == interlock.Retryable
}

var (
	// errFailedBefore rejects statements of a transaction that has failed.
	errFailedBefore = errors.New("the transaction failed before, and can only be rolled back")
	// errReplaced means that the server has ended the transaction before, and that later
	// statements were not committed.
	errReplaced = errors.New("the transaction had ended before: the server rolled it back after an error that was ignored, " +
		"or committed it because of a statement such as CREATE")
)

func isNumber(err error, number uint16) bool {
	var native *client.MySQLError
	return errors.As(err, &native) && native.Number == number
}

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
	return failure.Uncommitted(ofStatement(ctx, op, name, err))
}
