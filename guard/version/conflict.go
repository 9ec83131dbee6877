package version

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
)

// ErrConflict means that another writer was faster, and that nothing was done. A function that
// [Tx] runs returns it, or an error that wraps it, to be run again. It is Retryable.
var ErrConflict error = &interlock.Error{Op: "update", Kind: interlock.Retryable,
	Err: errors.New("another writer changed it since it was read")}

// A ConflictError means that each attempt met a conflict, and that nothing was done. It is an
// [ErrConflict] and Retryable: the same update may succeed once there are fewer writers.
type ConflictError struct {
	Name     string
	Attempts int
	Err      error // of the last attempt
}

// Error names the entity and the number of attempts.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("update %q: %d attempts met another writer's change: %v", e.Name, e.Attempts, e.Err)
}

// Unwrap returns [ErrConflict] and the last attempt's error.
func (e *ConflictError) Unwrap() []error { return []error{ErrConflict, e.Err} }

// ErrorKind returns [interlock.Retryable].
func (e *ConflictError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A TerminalError means that an entity was not updated because its state is terminal. It is
// Definite.
type TerminalError struct {
	Name  string
	Stamp Stamp // of the terminal state
}

// Error names the entity.
func (e *TerminalError) Error() string {
	return fmt.Sprintf("update %q: its state is terminal, at %v", e.Name, e.Stamp)
}

// ErrorKind returns [interlock.Definite].
func (e *TerminalError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// retryable reports whether a next attempt in a database may succeed: after a conflict or a
// connection failure.
func retryable(err error) bool { return interlock.Kind(err) == interlock.Retryable }

// conflicting reports a conflict. Requests to a store are already retried, so another failure
// is not attempted again.
func conflicting(err error) bool { return errors.Is(err, ErrConflict) }

// conflicted reports whether another transaction caused err: ErrConflict, or the database undid
// a transaction in favor of others, or did not grant a lock in time. SQLSTATE 40… means this in
// both databases, and 55P03 in PostgreSQL. For the other Retryable errors MariaDB has only
// HY000.
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

// Stats counts the results of updates. The zero value is ready. It is safe for concurrent use,
// and several updaters may share it.
type Stats struct {
	attempts, conflicts, retries, exhausted, handedOff atomic.Int64
}

// Counts are the numbers of a [Stats] at some time.
type Counts struct {
	Attempts  int64 // those of all updates together
	Conflicts int64 // attempts that met another writer's change
	Retries   int64 // attempts that were to be followed by another one
	Exhausted int64 // updates whose last attempt met a conflict
	HandedOff int64 // those of them that Options.HandOff took over
}

// ConflictRate returns the share of attempts that met a conflict: from 0 to 1, and 0 if there
// were no attempts.
func (c Counts) ConflictRate() float64 {
	if c.Attempts == 0 {
		return 0
	}
	return float64(c.Conflicts) / float64(c.Attempts)
}

// Counts returns the numbers; it reads each separately.
func (s *Stats) Counts() Counts {
	return Counts{Attempts: s.attempts.Load(), Conflicts: s.conflicts.Load(), Retries: s.retries.Load(),
		Exhausted: s.exhausted.Load(), HandedOff: s.handedOff.Load()}
}

// Hooks returns hooks that count; pass them in Options.
func (s *Stats) Hooks() *observe.Version {
	return &observe.Version{
		Attempted: func(e observe.VersionAttempted) {
			s.attempts.Add(1)
			if e.Conflict {
				s.conflicts.Add(1)
			}
		},
		Retrying: func(observe.VersionRetrying) { s.retries.Add(1) },
		Exhausted: func(e observe.VersionExhausted) {
			s.exhausted.Add(1)
			if e.HandedOff {
				s.handedOff.Add(1)
			}
		},
	}
}
