package once

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// An Outcome is the result of delivering a message.
type Outcome int

const (
	// Undone means that the message had no effect, or that the error leaves this open.
	Undone Outcome = iota
	// Done means that the message was new, and that its effect is in the transaction, which
	// [Tx] and [BatchTx] have committed.
	Done
	// Duplicate means that the message had its effect before. Acknowledge it.
	Duplicate
	// Mismatched means that another payload was recorded under its ID. Delivering it again does
	// not help.
	Mismatched
)

// String returns the outcome's name in lower case.
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

// A MismatchError means that a message differs from the one that was recorded under its ID, or
// at its position in a sequence. Nothing was done. It is Definite: an ID was used twice.
type MismatchError struct {
	Consumer string
	Message  string // its ID, or key@epoch.seq
}

// Error names the message and the consumer.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("receive %q for %q: it was recorded with another payload, and is not a duplicate", e.Message, e.Consumer)
}

// ErrorKind returns [interlock.Definite].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A GapError means that an earlier message of the same key is missing. Nothing was recorded or
// done. It is Retryable: deliver the message again after the missing one, or skip that one by
// [Inbox.Skip].
type GapError struct {
	Consumer  string
	Key       string
	Epoch     int64
	Want, Got int64 // sequence numbers in Epoch
}

// Error names both numbers.
func (e *GapError) Error() string {
	return fmt.Sprintf("receive %q for %q: got %d, but %d comes next in epoch %d", e.Key, e.Consumer, e.Got, e.Want, e.Epoch)
}

// ErrorKind returns [interlock.Retryable].
func (e *GapError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

func retryable(op, name, why string) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Retryable, Err: errors.New(why)}
}

// stateOf returns the SQLSTATE of the database's error, empty if it has none.
func stateOf(err error) string {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return ""
	}
	return state.SQLState()
}
