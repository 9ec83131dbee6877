package once

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Message is what may be delivered more than once.
//
// Without a Seq it is known by its ID, and a record of it is kept. With one it is
// known by Key, Epoch and Seq, and one row for each key says how far it is: Seq
// counts 1, 2, 3, … for a Key, and begins at 1 again in a higher Epoch, which a
// producer takes that cannot go on counting. A lower epoch than the last is a
// duplicate.
type Message struct {
	// ID is unique for all time among what the consumer is given: 1 to 255 bytes
	// of UTF-8 without NUL. With a Seq it may be empty.
	ID string
	// Payload must be the same whenever the ID is. Its SHA-256 is kept.
	Payload []byte
	// Hash is what to compare instead of the SHA-256 of Payload: 32 bytes, or nil.
	Hash []byte
	// Key is whose sequence it belongs to: as ID; it is not looked at without a Seq.
	Key string
	// Epoch, from 0, and Seq, from 1, are its place there. Seq 0 means that it
	// has none.
	Epoch, Seq int64
}

// maxID is the longest ID, key and consumer in bytes.
const maxID = 255

func (m Message) check() error {
	switch {
	case m.Seq < 0 || m.Epoch < 0:
		return failure.Bug("receive", m.name(), "epoch %d, sequence number %d: they are not negative", m.Epoch, m.Seq)
	case m.Hash != nil && len(m.Hash) != sha256.Size:
		return failure.Bug("receive", m.name(), "the hash has %d bytes, not %d", len(m.Hash), sha256.Size)
	case m.Seq > 0:
		return named("key", m.Key)
	}
	return named("message id", m.ID)
}

// name is how errors call it.
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

// named checks a name that the database is to keep.
func named(what, name string) error {
	return driver.CheckName("use "+what, "a "+what, name, maxID)
}
