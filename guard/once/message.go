package once

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Message is a message that may be delivered more than once.
//
// A message without a Seq is identified by its ID, and the inbox keeps a record of it. A
// message with a Seq is identified by Key, Epoch and Seq, and one row per key stores the last
// position. Seq counts 1, 2, 3, … for a Key. A producer that cannot continue the count takes a
// higher Epoch, in which Seq starts at 1 again. A message of a lower epoch than the last is a
// duplicate.
type Message struct {
	// ID is unique forever among the consumer's messages: 1 to 255 bytes of UTF-8 without NUL.
	// With a Seq it may be empty.
	ID string
	// Payload must be the same in every delivery of an ID. The inbox stores its SHA-256.
	Payload []byte
	// Hash is compared in place of the SHA-256 of Payload: 32 bytes, or nil.
	Hash []byte
	// Key names the sequence of the message, with the bounds of ID; it is ignored without a
	// Seq.
	Key string
	// Epoch, from 0, and Seq, from 1, are the message's position in the sequence. Seq 0 means
	// none.
	Epoch, Seq int64
}

// maxID is the maximum length of an ID, key or consumer in bytes.
const maxID = 255

func (m Message) check() error {
	switch {
	case m.Seq < 0 || m.Epoch < 0:
		return failure.Bug("receive", m.name(), "epoch %d, sequence number %d: they must not be negative", m.Epoch, m.Seq)
	case m.Hash != nil && len(m.Hash) != sha256.Size:
		return failure.Bug("receive", m.name(), "the hash has %d bytes, not %d", len(m.Hash), sha256.Size)
	case m.Seq > 0:
		return validateName("key", m.Key)
	}
	return validateName("message id", m.ID)
}

// name returns the message's name in errors.
func (m Message) name() string {
	if m.Seq > 0 {
		return fmt.Sprintf("%s@%d.%d", m.Key, m.Epoch, m.Seq)
	}
	return m.ID
}

func (m Message) hash() []byte {
	if m.Hash != nil {
		return m.Hash
	}
	sum := sha256.Sum256(m.Payload)
	return sum[:]
}

func (m Message) same(hash []byte) bool { return bytes.Equal(m.hash(), hash) }

// validateName validates a name that the database stores.
func validateName(what, name string) error {
	return driver.CheckName("use "+what, "a "+what, name, maxID)
}

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
