// Package leasequeue consumes queues whose groups of messages are leased, one batch of a group
// at a time: it renews leases, waits for messages, and counts what a lease still covers. How
// messages are kept is the affair of a Store. It handles nothing and retries nothing.
package leasequeue

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A Group is the messages of one key that were leased together.
type Group struct {
	ID       int64
	Token    interlock.Token
	Messages []driver.Received // without Claim; at least one
}

// Held names a group under the token of its lease.
type Held struct {
	ID    int64
	Token interlock.Token
}

// Settled is the outcomes of messages of one group.
type Settled struct {
	Held
	Outcomes []driver.Settlement
	Finished bool // no message of the lease is left: the group is free again
	Kept     bool // an earlier outcome of the lease kept its message: Retry, Park or Release
}

// A Store keeps one queue. Each method is one atomic step. A lease that has expired, and that
// nobody took over, is still that of its token.
type Store interface {
	// Claim leases groups that are ready, under tokens above all former ones of each group.
	// The first message of a group whose lease had expired has one more attempt. If there is
	// none it says how long until one is ready; 0 if that is not known.
	Claim(ctx context.Context, owner string, lease time.Duration, limit driver.QueueLimit) (groups []Group, wait time.Duration, err error)
	// Renew begins the leases of groups again. It returns those that it renewed, and those
	// that others have. A group that is in neither is locked for a moment.
	Renew(ctx context.Context, held []Held, lease time.Duration) (kept, lost []Held, err error)
	// Settle records outcomes. It changes nothing of groups that others have, and returns them.
	Settle(ctx context.Context, settled []Settled) (lost []Held, err error)
}

// A Place is one message of a lease.
type Place struct {
	Held
	Place int64
}

// A Finisher removes messages in the user's transaction, if their leases are still those of
// the tokens. Else the error is an interlock.ErrLost.
type Finisher interface {
	// Finish is the last statement on the leases in that transaction.
	Finish(ctx context.Context, db driver.SQL, all []Place) error
}

var errForeign = errors.New("the message was not received by this consumer")
