// Package leasequeue consumes queues whose groups of messages are leased, one batch of a group
// at a time. It renews leases, waits for messages, and counts the unsettled messages of a
// lease. A Store keeps the messages. The package calls no handlers and retries nothing.
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

// Held is a group and the token of its lease.
type Held struct {
	ID    int64
	Token interlock.Token
}

// Settled has the outcomes of messages of one group.
type Settled struct {
	Held
	Outcomes []driver.Settlement
	Finished bool // no message of the lease is left: the group is free again
	Kept     bool // an earlier outcome of the lease kept its message: Retry, Park or Release
}

// A Store keeps one queue. Each method is one atomic step. An expired lease belongs to its
// token until another owner takes the group.
type Store interface {
	// Claim leases groups that are ready, under tokens above all former ones of each group. If
	// a group's lease had expired, its first message has one more attempt. Without a ready
	// group, wait is the time until one is ready; 0 if not known.
	Claim(ctx context.Context, owner string, lease time.Duration, limit driver.QueueLimit) (groups []Group, wait time.Duration, err error)
	// Renew restarts the leases of groups. It returns the renewed ones, and the lost ones,
	// which other owners have. A group in neither is briefly locked.
	Renew(ctx context.Context, held []Held, lease time.Duration) (kept, lost []Held, err error)
	// Settle records outcomes. It does not change groups of other owners, and returns them.
	Settle(ctx context.Context, settled []Settled) (lost []Held, err error)
}

// A Place is one message of a lease.
type Place struct {
	Held
	Place int64
}

// A Finisher removes messages in the user's transaction, if the tokens still have their leases.
// Otherwise the error is an interlock.ErrLost.
type Finisher interface {
	// Finish is the last statement on the leases in that transaction.
	Finish(ctx context.Context, db driver.SQL, all []Place) error
}

var errForeign = errors.New("the message was not received by this consumer")
