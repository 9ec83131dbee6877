package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
)

// outcome is the result of a claim.
type outcome int

const (
	ours     outcome = iota // this attempt must execute the request
	answered                // the request was executed before
	inFlight                // another attempt is running
	mismatch                // the key belongs to another request
)

// classify returns the outcome of a claim from the resulting record. It checks for a mismatch
// first, so that no client receives the answer to another request.
func classify(c driver.IdempotencyClaim, r driver.IdempotencyRecord) outcome {
	switch {
	case r.Fingerprint != c.Fingerprint:
		return mismatch
	case r.Finished:
		return answered
	case r.Owner == c.Owner:
		return ours
	}
	return inFlight
}

// looks is the interval at which waiters check an attempt that is in flight.
var looks = backoff.Policy{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}

// await claims until the request is not in flight, for at most wait. The returned request has
// not begun.
func (s *Store) await(ctx context.Context, c driver.IdempotencyClaim, wait time.Duration) (*Request, outcome, error) {
	until := time.Now().Add(wait)
	for n := 1; ; n++ {
		r, err := s.claim(ctx, c)
		if err != nil {
			if r.unclear {
				_ = s.give(ctx, r, false) // no attempt runs; if this fails, the lease expires
			}
			return nil, 0, err
		}
		outcome := classify(c, r.record)
		if left := time.Until(until); outcome != inFlight || left <= 0 || !backoff.Sleep(ctx, min(left, looks.Delay(n, rand.Float64()))) {
			return r, outcome, nil
		}
	}
}

// claim sends a claim to the store and retries with the same owner.
func (s *Store) claim(ctx context.Context, c driver.IdempotencyClaim) (*Request, error) {
	r := &Request{store: s, id: c.ID, owner: c.Owner, busy: make(chan struct{}, 1)}
	err := s.persist(ctx, func(int) (bool, error) {
		r.sent = boottime.Now()
		ctx, cancel := context.WithTimeout(ctx, cleanup) // also if the caller would wait for ever
		defer cancel()
		var err error
		r.record, err = s.records.Claim(ctx, c)
		unclear := errors.Is(err, interlock.ErrUncertain)
		r.unclear = r.unclear || unclear
		return again(err) || unclear, err
	})
	if err != nil {
		return r, failure.About("claim request", c.ID.Key, err)
	}
	r.points, err = parsePoints(r.record.Points)
	return r, err
}

// give ends the lease, so that the next attempt can begin. With forget it removes the record.
func (s *Store) give(ctx context.Context, r *Request, forget bool) error {
	return s.record(ctx, driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Forget: forget})
}

// settle reads the record again if a phase has an unknown outcome. It waits for a transaction
// that is still running. The caller has r.busy.
func (r *Request) settle(ctx context.Context) error {
	if r.doubt == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	now, err := r.store.claim(ctx, driver.IdempotencyClaim{ID: r.id, Owner: r.owner, Fingerprint: r.record.Fingerprint,
		Lease: r.store.options.Lease})
	switch {
	case err != nil:
		return err
	case now.record.Owner != r.owner || now.record.Attempt != r.record.Attempt:
		r.doubt = nil // the record belongs to another attempt
		return &interlock.Error{Op: "look at request", Name: r.id.Key, Kind: interlock.Definite, Err: interlock.ErrLost}
	}
	if r.points = now.points; now.record.Finished { // it was the last phase
		r.doubt()
	}
	r.doubt = nil
	return nil
}

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
	// refused. See [Fingerprint]. 1 to 255 bytes of UTF-8 without NUL.
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
	if err := driver.CheckText("a fingerprint", c.Fingerprint, 1, driver.MaxIdempotencyName); err != nil {
		return failure.Bug("claim request", c.Key, "%w", err)
	}
	if len(c.Input) > MaxInput {
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
