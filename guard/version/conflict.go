package version

import (
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
)

// ErrConflict: another writer was faster, and nothing was done. A function that is
// run by [Tx] returns it, or an error that wraps it, to be run again. It is
// Retryable.
var ErrConflict error = &interlock.Error{Op: "update", Kind: interlock.Retryable,
	Err: errors.New("another writer changed it since it was read")}

// A ConflictError tells that each attempt met a conflict, and that nothing was
// done. It is an [ErrConflict] and Retryable: the same update may work once there
// are fewer writers.
type ConflictError struct {
	Name     string
	Attempts int
	Err      error // of the last attempt
}

// Error names the entity and the number of attempts.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("update %q: %d attempts met another writer's change: %v", e.Name, e.Attempts, e.Err)
}

// Unwrap gives the last attempt's error, and makes it an [ErrConflict].
func (e *ConflictError) Unwrap() []error { return []error{ErrConflict, e.Err} }

// ErrorKind is [interlock.Retryable].
func (e *ConflictError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A TerminalError tells that an entity's state is terminal, so that it was not
// updated. It is Definite.
type TerminalError struct {
	Name  string
	Stamp Stamp // of the terminal state
}

// Error names the entity.
func (e *TerminalError) Error() string {
	return fmt.Sprintf("update %q: its state is terminal, at %v", e.Name, e.Stamp)
}

// ErrorKind is [interlock.Definite].
func (e *TerminalError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// retryable: in a database, what is in the way of one attempt, be it a conflict or
// a connection, is for the next one.
func retryable(err error) bool { return interlock.Kind(err) == interlock.Retryable }

// conflicting: requests to a store are repeated by themselves, and what failed
// nevertheless is not attempted again.
func conflicting(err error) bool { return errors.Is(err, ErrConflict) }

// conflicted reports whether another transaction was in the way: ErrConflict, or
// the database undid a transaction for the sake of others, or did not give a lock
// in time. SQLSTATE 40… says so in both databases, 55P03 in PostgreSQL, and MariaDB
// has no better one than HY000 for the rest of what is Retryable.
func conflicted(err error) bool {
	var state interface{ SQLState() string }
	switch {
	case err == nil || !retryable(err):
		return false
	case errors.Is(err, ErrConflict) || errors.Is(err, interlock.ErrHeld):
		return true
	case errors.As(err, &state):
		return strings.HasPrefix(state.SQLState(), "40") || state.SQLState() == "HY000"
	}
	return false
}
