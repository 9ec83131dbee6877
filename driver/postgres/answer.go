package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
)

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
