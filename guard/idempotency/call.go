package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// MaxInput is the maximum length of the input in a record, in bytes.
const MaxInput = 1 << 20

// A Call is a request that takes effect once, however often it is sent.
type Call struct {
	// Scope identifies the caller, such as a tenant. Two scopes may use the same key. Empty is
	// a valid scope. At most 255 bytes.
	Scope string
	// Operation is the requested operation: the method and the template of a route, the method
	// of a service, or the type of a message. 1 to 255 bytes.
	Operation string
	// Key is chosen by the client, and is the same for each retry. 1 to 255 bytes.
	Key string
	// Fingerprint identifies the content of the request. A different one under the same key is
	// refused. See [Fingerprint]. 1 to 255 bytes.
	Fingerprint string
	// Input is stored with the record for a [Completer], at most [MaxInput] bytes. The input of
	// the first attempt is kept.
	Input []byte
	// Wait is how long to wait for another attempt that is in flight; 0 fails at once.
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

// Fingerprint returns the SHA-256 of the parts of a request, in hexadecimal digits. The length
// of each part is hashed too, so different splits of the same bytes have different
// fingerprints.
func Fingerprint(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		_ = binary.Write(h, binary.BigEndian, uint64(len(p))) // a hash takes everything
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
