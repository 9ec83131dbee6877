package driver

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
)

// MaxName is the maximum length of a name that a portable type passes to a driver, in bytes.
const MaxName = 512

// A Request asks for a name on behalf of one owner.
type Request struct {
	// Name is the name to acquire: 1 to MaxName bytes, exactly as the user gave it.
	Name string
	// Owner is unique to this attempt at holding Name, and is never used again after its
	// release. It identifies the contender in the backend and makes requests idempotent: a
	// second Acquire with the same Owner finds the first one's place in the queue or grant. For
	// people, it starts with the identity of the process. It has at most MaxName bytes.
	Owner string
	// NoWait requests an immediate answer: a grant, or interlock.ErrHeld without a place in the
	// queue.
	NoWait bool
	// TTL is how long the lease lives without renewal; 0 means the driver's TTL. It is set only
	// within Guarantees.MinTTL and MaxTTL.
	TTL time.Duration
	// Renew is how often the driver renews the lease; 0 means every third of the TTL. Negative
	// means never: the lease ends after the TTL, unless a repeated Acquire with this Owner
	// finds its grant first. That Acquire sends the TTL again. Renew is non-zero only where TTL
	// may be set.
	Renew time.Duration
	// MinLease is the minimum time that the lease must last when Acquire returns. If a driver's
	// first lease may be shorter than the TTL, the driver renews it first. 0 requires nothing.
	MinLease time.Duration
	// Events receives progress. Its functions may be nil.
	Events Events
}

// Lease returns how long the lease lives without renewal, if the driver's TTL is ttl.
func (r Request) Lease(ttl time.Duration) time.Duration { return cmp.Or(r.TTL, ttl) }

// Every returns the time from one renewal to the next. If the lease is never renewed, that time
// is longer than the lease.
func (r Request) Every(ttl time.Duration) time.Duration {
	if r.Renew < 0 {
		return 2 * r.Lease(ttl)
	}
	return cmp.Or(r.Renew, r.Lease(ttl)/3)
}

// Events are callbacks that the driver calls from its own goroutines, possibly concurrently.
// They must return at once and must not call the driver. After an Acquire has returned an
// error, none of them is called until the Acquire is repeated. After a call of Release, none is
// called.
type Events struct {
	// Waiting is called when the request has a place in the queue. The driver may call it again
	// when that place changes.
	Waiting func(Place)
	// Renewed is called after each renewal with its duration and error. A failed renewal does
	// not yet mean that the lease is lost.
	Renewed func(took time.Duration, err error)
	// Lost is called at most once for a grant, when the backend no longer has Owner as the
	// holder. The cause wraps interlock.ErrLost or interlock.ErrSessionEnded. Lost is not
	// called when the time runs out (the caller watches Remaining), nor after a call of
	// Release.
	Lost func(cause error)
}

// Place is a waiter's place in the queue.
type Place struct {
	Ahead  int    // waiters before this one, the holder not counted; -1 if not known
	Holder string // the owner that holds the name; empty if not known
}

// A Lease is granted time. The driver renews it until Release.
type Lease interface {
	// Remaining returns the time until another owner may hold the claim, without I/O: sent +
	// TTL·(1−drift) − now. Here sent is the time just before the last successful renewal was
	// sent (not when its reply arrived). The clock also counts while the machine sleeps. Once
	// Remaining is zero or less it stays so: a late reply never revives a lease that was seen
	// to end.
	Remaining() time.Duration
}

// A Grant is a lease with a fencing token.
type Grant struct {
	Lease Lease
	// Token has hand-over number 0 and is larger than the token of every earlier grant of the
	// name.
	Token interlock.Token
}

// Advisory is a lock without tokens. It saves duplicate work. Do not use it where correctness
// depends on the lock: no guard accepts its claims.
type Advisory interface {
	// Guarantees returns what the driver promises. It does not block, and its result is
	// constant.
	Guarantees() interlock.Guarantees
	// Acquire waits until r.Owner holds r.Name.
	//
	// If Acquire returns an error, its place in the queue or its grant stays, except with
	// NoWait. The caller then repeats the call with the same Owner, which converges, or calls
	// Release. At most one Acquire of an Owner runs at a time.
	//
	// From a successful return until Release, the driver renews the lease. If the backend drops
	// the lease, the driver calls r.Events.Lost. If a lease has ended, the driver may stop its
	// renewal: then a holder that no longer checks the lease does not keep others out.
	Acquire(ctx context.Context, r Request) (Lease, error)
	// Release removes the grant, the place in the queue or the attempt with an unknown outcome
	// that owner has on name, if any. It never affects another owner, and may be repeated.
	// Local renewal stops at the call, whatever the outcome. Nil means that the backend
	// confirmed.
	Release(ctx context.Context, name, owner string) error
	// Close stops all renewal, ends every goroutine and waits for them. Leases that are still
	// held expire. If there is nothing to wait for, it returns nil. Later calls of any method
	// return interlock.ErrClosed.
	Close(ctx context.Context) error
}

// Fenced is a lock whose grants carry tokens.
type Fenced interface {
	// Guarantees returns what the driver promises. It does not block, and its result is
	// constant.
	Guarantees() interlock.Guarantees
	// Acquire has the obligations of [Advisory] Acquire and also returns a token. The backend
	// issues tokens in the order of its grants. Each is greater than all earlier tokens of the
	// name, across processes and restarts. If clocks are correct, this also holds for a fresh
	// data directory. A repeated Acquire that finds its grant returns the same token.
	Acquire(ctx context.Context, r Request) (Grant, error)
	// Release has the obligations of [Advisory] Release.
	Release(ctx context.Context, name, owner string) error
	// Close has the obligations of [Advisory] Close.
	Close(ctx context.Context) error
}

// Batch is an optional interface of a fenced lock driver that acquires several names in one
// step. With it, a caller never holds some of the names while it waits for the others.
type Batch interface {
	// AcquireAll acquires every name for its owner, or none, in one atomic step of the backend.
	// Grants are in the order of requests. It never waits, whatever NoWait says, and never
	// calls Events.Waiting. If there is no request, or a name or an owner occurs twice, the
	// error is a Bug.
	//
	// If another owner holds or waits for one of the names, the error is a *interlock.HeldError
	// with that name. Then none of the requests has a grant or a place in the queue. If the
	// backend cannot take the names in one step, the error is [ErrNotInOneStep], and nothing
	// was sent. After any other error some of the names may be held, as after an Acquire. Then
	// the caller repeats the call with the same requests, which converges, or calls Release for
	// each owner. If the repetition finds all grants, it returns their tokens. If it finds only
	// some, it acquires the missing names again, or releases the rest.
	//
	// Each grant has its own token, and is renewed, lost and released independently, as a grant
	// of Acquire. Two names of one call may have equal tokens if no guard can observe their
	// order.
	AcquireAll(ctx context.Context, requests []Request) ([]Grant, error)
}

// ErrNotInOneStep is returned if a backend cannot acquire the names in one step, because there
// are too many or they conflict with each other. They can be acquired one by one.
var ErrNotInOneStep = errors.New("these names cannot be taken in one step")

// Distinct reports whether requests is not empty and no name and no owner occurs twice, as
// [Batch] requires.
func Distinct(requests []Request) bool {
	names, owners := map[string]bool{}, map[string]bool{}
	for _, r := range requests {
		names[r.Name], owners[r.Owner] = true, true
	}
	return len(requests) > 0 && len(names) == len(requests) && len(owners) == len(requests)
}
