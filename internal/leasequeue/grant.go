package leasequeue

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// Grant is the lease of one group, as a [driver.Assignment]. Those of one claim are allocated together.
type Grant struct {
	Held
	key      string
	consumer *Consumer
	lease    *boottime.Lease
	ctx      context.Context
	cancel   context.CancelCauseFunc

	// The consumer's mutex guards these.
	unsettled int  // messages
	kept      bool // a message was settled and kept
	doubt     bool // a Settle of the last messages failed, and may have freed the group
	freed     bool // it has
}

var _ driver.Assignment = (*Grant)(nil)

// grant sets the lease of a group.
func (c *Consumer) grant(n *Grant, g *Group, sent boottime.Instant) {
	*n = Grant{Held: Held{g.ID, g.Token}, key: g.Messages[0].Key, consumer: c, unsettled: len(g.Messages), lease: boottime.NewLease(sent, c.options.Lease)}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
}

// Name returns the name of the queue and the key.
func (g *Grant) Name() string {
	if g.key == "" {
		return g.consumer.name
	}
	return g.consumer.name + "/" + g.key
}

// Owner returns the consumer's owner.
func (g *Grant) Owner() string { return g.consumer.options.Owner }

// Token returns the lease's token.
func (g *Grant) Token() interlock.Token { return g.Held.Token }

// Context returns a context that ends with the lease.
func (g *Grant) Context() context.Context { return g.ctx }

// Remaining returns the rest of the lease.
func (g *Grant) Remaining() time.Duration { return g.lease.Remaining() }

// Valid reports whether the lease lasts.
func (g *Grant) Valid() bool { return g.ctx.Err() == nil && g.Remaining() > 0 }

// Revoked returns a channel that is closed when the grant ends; leases are never revoked early.
func (g *Grant) Revoked() <-chan struct{} { return g.ctx.Done() }

// Finish removes messages in the user's transaction. If one is of a queue outside a database, ok
// is false and nothing is removed.
func Finish(ctx context.Context, db driver.SQL, all []driver.Received) (ok bool, err error) {
	byStore := map[Finisher][]Place{}
	for _, m := range all {
		g, ok := m.Claim.(*Grant)
		if !ok {
			return false, nil
		}
		f, ok := g.consumer.store.(Finisher)
		if !ok {
			return false, nil
		}
		byStore[f] = append(byStore[f], Place{g.Held, m.Place})
	}
	for f, places := range byStore {
		if err := f.Finish(ctx, db, places); err != nil {
			return true, err
		}
	}
	return true, nil
}
