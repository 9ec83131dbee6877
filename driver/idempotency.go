package driver

import (
	"context"
	"time"
)

// MaxIdempotencyName is the maximum length of the scope, operation, key, owner and fingerprint
// of a request, in bytes.
const MaxIdempotencyName = 255

// IdempotencyID identifies a request that must take effect once.
type IdempotencyID struct {
	Scope     string // the caller, for example a tenant or a subject; may be empty
	Operation string // for example a method and the template of a route
	Key       string // chosen by the client, the same for each retry
}

// Validate returns a Bug that wraps interlock.ErrName if a part cannot be stored. Each part is
// 1 to [MaxIdempotencyName] bytes of UTF-8 without NUL; only Scope may be empty.
func (id IdempotencyID) Validate() error {
	for _, part := range []struct{ what, name string }{
		{"scope", id.Scope}, {"operation", id.Operation}, {"key", id.Key},
	} {
		if part.name == "" && part.what == "scope" {
			continue
		}
		if err := CheckName("name request", "its "+part.what, part.name, MaxIdempotencyName); err != nil {
			return err
		}
	}
	return nil
}

// IdempotencyClaim is a request for the right to execute a request.
type IdempotencyClaim struct {
	ID          IdempotencyID
	Fingerprint string        // of the request's content: 1 to MaxIdempotencyName bytes of text
	Owner       string        // unique to this attempt: 1 to MaxIdempotencyName bytes of text
	Lease       time.Duration // how long the claim excludes other owners, by the store's clock; above 0
	Input       []byte        // stored by the claim that creates the record
}

// IdempotencyRecord is the stored state of a request.
type IdempotencyRecord struct {
	ID          IdempotencyID
	Fingerprint string
	Owner       string        // of the latest attempt
	Attempt     int           // the number of the latest attempt, from 1
	Remaining   time.Duration // of the lease, by the store's clock; 0 or less if the lease has expired
	Age         time.Duration // since the first claim, by the store's clock
	Input       []byte
	Points      []byte // from the last IdempotencyUpdate with Points; empty before
	Finished    bool
	Answer      IdempotencyAnswer // zero until Finished
}

// IdempotencyAnswer is the response to a request. A store keeps it unchanged.
type IdempotencyAnswer struct {
	Status int
	Header []byte
	Body   []byte
	Digest string // set if the body was too long to store; then Body is empty
}

// IdempotencyUpdate is a change of a record by the attempt of Owner.
type IdempotencyUpdate struct {
	ID     IdempotencyID
	Owner  string
	Lease  time.Duration // the new lease, from the store's current time; 0 ends the lease
	Points []byte        // the recovery points reached; nil leaves them unchanged
	// Answer finishes the request and is kept for at least Keep. Nil leaves it unfinished.
	Answer *IdempotencyAnswer
	Keep   time.Duration
	// Forget removes the record, as if the request had never been made. The fields Lease,
	// Points, Answer and Keep are then ignored.
	Forget bool
}

// IdempotencyQuery selects unfinished requests.
type IdempotencyQuery struct {
	Operation string        // empty selects every operation
	Lapsed    time.Duration // the minimum time since the lease expired
	Attempts  int           // selects records with fewer attempts; 0 is no limit
	Limit     int           // the maximum number of records, above 0
}

// Idempotency stores records of requests. Each method is one atomic step. Answers are durable:
// they survive the process that wrote them. Only Forget removes an unfinished record.
type Idempotency interface {
	// Claim creates a record that c.Owner owns. If a record exists, c.Owner takes it over with
	// a new lease, and Attempt increases if the owner changes, provided that:
	//
	//   - the record is unfinished and has the same fingerprint
	//   - c.Owner owns it already, or its lease has expired
	//
	// Otherwise nothing changes. Claim returns the resulting record; its Owner shows whether
	// the claim succeeded. Claim never shows a record as unfinished to an owner that has lost
	// it. Repeating it after an Uncertain error converges.
	Claim(ctx context.Context, c IdempotencyClaim) (IdempotencyRecord, error)
	// Update applies u if u.Owner owns the record, even if the lease has expired. If u.Owner
	// does not own the record, or has lost it, the error is a Definite interlock.ErrLost. If
	// u.Owner has finished the record, Update does nothing and returns nil. Forgetting a record
	// that does not exist returns nil.
	//
	// Repeating it after an Uncertain error converges.
	Update(ctx context.Context, u IdempotencyUpdate) error
	// Unfinished lists records without Input, Points and Answer, ordered by when their leases
	// expired, earliest first.
	Unfinished(ctx context.Context, q IdempotencyQuery) ([]IdempotencyRecord, error)
	// Remove removes at most limit finished records whose Keep has passed, and returns how
	// many. A store that expires records itself removes none.
	Remove(ctx context.Context, limit int) (int, error)
}
