package driver

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// MaxName is the longest name, in bytes, that a portable type passes down.
const MaxName = 512

// A Request asks for a name on behalf of one owner.
type Request struct {
	// Name is what is wanted: 1 to MaxName bytes, as the user wrote it.
	Name string
	// Owner is unique to this attempt at holding Name, and never used again
	// once released. It identifies the contender in the backend and makes
	// requests idempotent: a second Acquire with the same Owner finds the place
	// in the queue, or the grant, that the first one got. It starts with who
	// asks, for people, and is at most MaxName bytes.
	Owner string
	// NoWait asks for an answer now: granted, or interlock.ErrHeld with nothing
	// left behind.
	NoWait bool
	// TTL is how long the lease lives without renewal; 0 means the driver's. It is
	// set only within what Guarantees.MinTTL and MaxTTL allow.
	TTL time.Duration
	// Renew is how often the driver renews the lease; 0 means every third of the
	// TTL, and negative means never: the lease ends after the TTL, unless a repeated
	// Acquire with this Owner, which sends the TTL again, finds its grant before.
	// It is not 0 only where TTL may be set.
	Renew time.Duration
	// MinLease is what the lease needs to last when Acquire returns. A driver whose
	// first lease may be shorter than the TTL renews it before; 0 needs nothing.
	MinLease time.Duration
	// Events tells the caller what happens meanwhile. Its functions may be nil.
	Events Events
}

// Lease is how long the lease lives without renewal, if that of the driver is ttl.
func (r Request) Lease(ttl time.Duration) time.Duration { return cmp.Or(r.TTL, ttl) }

// Every is how long after a renewal the next one is due. If there is none, it is
// after the end of the lease.
func (r Request) Every(ttl time.Duration) time.Duration {
	if r.Renew < 0 {
		return 2 * r.Lease(ttl)
	}
	return cmp.Or(r.Renew, r.Lease(ttl)/3)
}

// Events are calls from the driver's own goroutines, possibly at once with each
// other. They must return at once and must not call the driver. None of them
// comes after an Acquire has returned an error, until it is repeated, nor after
// Release was called.
type Events struct {
	// Waiting is called when the request has a place in the queue, and again
	// when that place changes, at the driver's discretion.
	Waiting func(Place)
	// Renewed is called after each renewal: how long it took, and why it failed.
	// A failed renewal is not a loss yet.
	Renewed func(took time.Duration, err error)
	// Lost is called at most once for a grant, when the backend no longer names
	// Owner as the holder: interlock.ErrLost or interlock.ErrSessionEnded in
	// its chain. It is not called for time running out (the caller watches
	// Remaining) nor after Release was called.
	Lost func(cause error)
}

// Place is a waiter's place in the queue.
type Place struct {
	Ahead  int    // waiters before this one, the holder not counted; -1 if not known
	Holder string // who holds the name; empty if not known
}

// A Lease is time that was granted, kept alive by the driver until Release.
type Lease interface {
	// Remaining is the time until the claim may belong to someone else, read
	// on the spot, without I/O: sent + TTL·(1−drift) − now, where sent was
	// taken just before the last good renewal left (never when its reply
	// came) and now is a clock that counts while the machine sleeps. It is
	// zero or less once the time has run out, and stays so: a lease that was
	// seen to end is never revived by a late reply.
	Remaining() time.Duration
}

// A Grant is a fenced lease.
type Grant struct {
	Lease Lease
	// Token has hand-over number 0 and is larger than that of every earlier
	// grant of the name.
	Token interlock.Token
}

// Advisory is a lock without tokens. It saves duplicate work and cannot be
// used where correctness depends on it: no guard accepts it.
type Advisory interface {
	// Guarantees says what is promised. It does not block or change.
	Guarantees() interlock.Guarantees
	// Acquire waits until r.Owner holds r.Name.
	//
	// It leaves its place in the queue, or its grant, behind when it returns
	// an error other than for NoWait: the caller decides whether to call
	// it again with the same Owner, which converges, or to call Release. At
	// most one Acquire is under way for an Owner.
	//
	// From a successful return until Release the driver renews the lease, and
	// tells r.Events.Lost if the backend drops it. A lease that has ended need
	// not be renewed any more: it is left to lapse, so that a holder that has
	// stopped looking does not keep others out.
	Acquire(ctx context.Context, r Request) (Lease, error)
	// Release gives up whatever owner has on name: a grant, a place in the
	// queue, an attempt whose outcome is unknown, or nothing. It never touches
	// what another owner has, and may be repeated. Local renewal stops at the
	// call, whatever its outcome; nil means that the backend confirmed.
	Release(ctx context.Context, name, owner string) error
	// Close stops renewing, ends every goroutine and waits for them. What is
	// still held is left to expire; nil if there was nothing to wait for. Later
	// calls of any method return interlock.ErrClosed.
	Close(ctx context.Context) error
}

// Fenced is a lock whose grants carry tokens.
type Fenced interface {
	// Guarantees says what is promised. It does not block or change.
	Guarantees() interlock.Guarantees
	// Acquire has the obligations of [Advisory] Acquire, and the token: drawn
	// by the backend in the order in which it grants, and strictly above every
	// token granted for the name before, across processes, restarts and, given
	// sane clocks, fresh data directories. A repeated Acquire that finds its
	// grant returns the same token.
	Acquire(ctx context.Context, r Request) (Grant, error)
	// Release has the obligations of [Advisory] Release.
	Release(ctx context.Context, name, owner string) error
	// Close has the obligations of [Advisory] Close.
	Close(ctx context.Context) error
}
