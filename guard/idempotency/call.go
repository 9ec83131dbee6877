package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// MaxInput is the longest input, in bytes, that a record keeps.
const MaxInput = 1 << 20

// A Call is a request that is to take effect once, whatever the number of times
// that it is made.
type Call struct {
	// Scope is whose request it is, such as a tenant: two of them may choose the
	// same key. Empty is a scope too. At most 255 bytes.
	Scope string
	// Operation is what is asked for: the method and the template of a route, the
	// method of a service, the type of a message. 1 to 255 bytes.
	Operation string
	// Key is chosen by who asks, and is the same for each retry. 1 to 255 bytes.
	Key string
	// Fingerprint is of what is asked: another one under the same key is refused.
	// See [Fingerprint]. 1 to 255 bytes.
	Fingerprint string
	// Input is kept with the record for a [Completer], at most [MaxInput] bytes.
	// That of the first attempt counts.
	Input []byte
	// Wait is for how long an attempt that is in flight is waited for; 0 refuses
	// at once.
	Wait time.Duration
}

func (c Call) id() driver.IdempotencyID {
	return driver.IdempotencyID{Scope: c.Scope, Operation: c.Operation, Key: c.Key}
}

func (c Call) validate() error {
	if err := c.id().Validate(); err != nil {
		return err
	}
	switch {
	case c.Fingerprint == "" || len(c.Fingerprint) > driver.MaxIdempotencyName:
		return failure.Bug("claim request", c.Key, "a fingerprint has 1 to %d bytes, this one has %d", driver.MaxIdempotencyName, len(c.Fingerprint))
	case len(c.Input) > MaxInput:
		return failure.Bug("claim request", c.Key, "an input has at most %d bytes, this one has %d", MaxInput, len(c.Input))
	}
	return nil
}

// Fingerprint is the SHA-256, in hexadecimal digits, of the parts of a request that
// make it what it is, each with its length, so that nothing can move from one to
// the next.
func Fingerprint(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		_ = binary.Write(h, binary.BigEndian, uint64(len(p))) // a hash takes everything
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
