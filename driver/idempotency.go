package driver

import (
	"context"
	"time"
)

// MaxIdempotencyName is the longest scope, operation, key, owner or fingerprint
// of a request, in bytes.
const MaxIdempotencyName = 255

// IdempotencyID names a request that must take effect once.
type IdempotencyID struct {
	Scope     string // whose request: a tenant or a subject; may be empty
	Operation string // what is asked: a method and the template of a route
	Key       string // chosen by who asks, the same for each retry
}

// Validate refuses a name that some store could not keep, as a Bug that is an
// interlock.ErrName: one that is empty (but for Scope), is longer than
// [MaxIdempotencyName] or is not UTF-8 without NUL.
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

// IdempotencyClaim asks for the right to carry a request out.
type IdempotencyClaim struct {
	ID          IdempotencyID
	Fingerprint string        // of what is asked: 1 to MaxIdempotencyName bytes of text
	Owner       string        // of this attempt, never used by another: 1 to MaxIdempotencyName bytes of text
	Lease       time.Duration // how long nobody else may, from the store's present; above 0
	Input       []byte        // kept by the claim that makes the record
}

// IdempotencyRecord is what a store knows of a request.
type IdempotencyRecord struct {
	ID          IdempotencyID
	Fingerprint string
	Owner       string        // of the latest attempt
	Attempt     int           // its number, from 1
	Remaining   time.Duration // of its lease, by the store's clock; not above 0 if it has lapsed
	Age         time.Duration // since the first claim, by the store's clock
	Input       []byte
	Points      []byte // what the last IdempotencyUpdate with Points wrote; empty before
	Finished    bool
	Answer      IdempotencyAnswer // once it is finished
}

// IdempotencyAnswer is what came of a request. A store keeps it as it is.
type IdempotencyAnswer struct {
	Status int
	Header []byte
	Body   []byte
	Digest string // of a body that is too long to be kept: Body is empty then
}

// IdempotencyUpdate is a step of the attempt that Owner makes.
type IdempotencyUpdate struct {
	ID     IdempotencyID
	Owner  string
	Lease  time.Duration // the new lease, from the store's present; 0 gives it up
	Points []byte        // the recovery points reached; nil leaves them as they are
	// Answer finishes the request and is kept for at least Keep; nil does not.
	Answer *IdempotencyAnswer
	Keep   time.Duration
	// Forget removes the record, as if nobody had ever asked; then nothing else counts.
	Forget bool
}

// IdempotencyQuery chooses unfinished requests.
type IdempotencyQuery struct {
	Operation string        // of this operation only; empty is any
	Lapsed    time.Duration // whose lease lapsed so long ago at least
	Attempts  int           // that had fewer attempts than this; 0 is any number
	Limit     int           // at most so many, above 0
}

// Idempotency keeps records of requests. Each of its steps is atomic. What was
// answered is not lost with the process that answered; what is not finished is
// never removed but by Forget.
type Idempotency interface {
	// Claim makes a record that c.Owner owns. If there is one, and it is unfinished,
	// has the same fingerprint and either the same owner or a lease that has lapsed,
	// then c.Owner owns it with a new lease, and Attempt grows if that is another
	// owner. Otherwise nothing changes. It returns the record as it is then:
	// whose it is tells what came of the claim. It never shows a record as unfinished
	// to an owner that it does not belong to any more.
	//
	// Repeating it after an Uncertain answer converges.
	Claim(ctx context.Context, c IdempotencyClaim) (IdempotencyRecord, error)
	// Update does all that u says, if u.Owner owns the record, and fails with an
	// interlock.ErrLost that is Definite if it does not, or not any more. That the
	// lease has lapsed is no obstacle. If u.Owner has finished it, nothing is done,
	// and that is no error; nor is it one to forget what is not there.
	//
	// Repeating it after an Uncertain answer converges.
	Update(ctx context.Context, u IdempotencyUpdate) error
	// Unfinished lists records without Input, Points and Answer, those whose lease
	// lapsed first before the others.
	Unfinished(ctx context.Context, q IdempotencyQuery) ([]IdempotencyRecord, error)
	// Remove removes at most limit finished records whose time has passed, and tells
	// how many. A store that does so by itself removes none.
	Remove(ctx context.Context, limit int) (int, error)
}
