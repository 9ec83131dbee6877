package once

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// An Outcome is the outcome of delivering a message.
type Outcome int

const (
	// Undone: it had no effect, or the error says that this is not known.
	Undone Outcome = iota
	// Done: it was new, and its effect is in the transaction, which [Tx] and
	// [BatchTx] have committed.
	Done
	// Duplicate: it had its effect before. Acknowledge it.
	Duplicate
	// Mismatched: another payload was recorded under its ID. It is of no use to
	// deliver it again.
	Mismatched
)

// String is the outcome's name in lower case.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "done"
	case Duplicate:
		return "duplicate"
	case Mismatched:
		return "mismatched"
	}
	return "undone"
}

// A MismatchError tells that a message is not the one that was recorded under its
// ID, or at its place in a sequence. Nothing was done. It is Definite: somebody
// uses an ID twice.
type MismatchError struct {
	Consumer string
	Message  string // its ID, or key@epoch.seq
}

// Error names the message and the consumer.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("receive %q for %q: it was recorded with another payload, and is not a duplicate", e.Message, e.Consumer)
}

// ErrorKind is [interlock.Definite].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A GapError tells that a message came before the one that its key waits for.
// Nothing was recorded or done. It is Retryable: deliver it again after that one,
// or give that one up by [Inbox.Skip].
type GapError struct {
	Consumer  string
	Key       string
	Epoch     int64
	Want, Got int64 // sequence numbers in Epoch
}

// Error shows both numbers.
func (e *GapError) Error() string {
	return fmt.Sprintf("receive %q for %q: got %d, but %d comes next in epoch %d", e.Key, e.Consumer, e.Got, e.Want, e.Epoch)
}

// ErrorKind is [interlock.Retryable].
func (e *GapError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

func retryable(op, name, why string) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Retryable, Err: errors.New(why)}
}

// stateOf is the SQLSTATE of the database's error, empty if it has none.
func stateOf(err error) string {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return ""
	}
	return state.SQLState()
}
