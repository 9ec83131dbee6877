package once

import (
	"bytes"
	"crypto/sha256"
	"fmt"

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
		return failure.Bug("receive", m.name(), "epoch %d, sequence number %d: they are not negative", m.Epoch, m.Seq)
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

// named validates a name that the database stores.
func validateName(what, name string) error {
	return driver.CheckName("use "+what, "a "+what, name, maxID)
}
