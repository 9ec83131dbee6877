package leasequeue

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// Grant is the lease of one group, as a [driver.Assignment].
type Grant struct {
	Held
	name, owner string
	consumer    *Consumer
	lease       *boottime.Lease
	ctx         context.Context
	cancel      context.CancelCauseFunc
	revoked     chan struct{}
	end         func() // closes revoked, once

	mu    sync.Mutex
	timer *time.Timer

	unsettled int  // messages; the consumer's mutex guards unsettled and kept
	kept      bool // a message was settled and kept
}

var _ driver.Assignment = (*Grant)(nil)

func (c *Consumer) grant(g Group, sent boottime.Instant) *Grant {
	n := &Grant{Held: Held{g.ID, g.Token}, name: c.name, owner: c.options.Owner, consumer: c, unsettled: len(g.Messages),
		lease: boottime.NewLease(sent, c.options.Lease), revoked: make(chan struct{})}
	if key := g.Messages[0].Key; key != "" {
		n.name += "/" + key
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.end = sync.OnceFunc(func() { close(n.revoked) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer = time.AfterFunc(n.Remaining(), n.watch)
	return n
}

// Name returns the name of the queue and the key.
func (g *Grant) Name() string { return g.name }

// Owner returns the consumer's owner.
func (g *Grant) Owner() string { return g.owner }

// Token returns the lease's token.
func (g *Grant) Token() interlock.Token { return g.Held.Token }

// Context returns a context that ends with the lease.
func (g *Grant) Context() context.Context { return g.ctx }

// Remaining returns the rest of the lease.
func (g *Grant) Remaining() time.Duration { return g.lease.Remaining() }

// Valid reports whether the lease lasts.
func (g *Grant) Valid() bool { return g.ctx.Err() == nil && g.Remaining() > 0 }

// Revoked returns a channel that is closed when the grant ends; leases are never revoked early.
func (g *Grant) Revoked() <-chan struct{} { return g.revoked }

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

// watch ends the grant when its lease has expired.
func (g *Grant) watch() {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.lease.Remaining()
	switch {
	case g.ctx.Err() != nil:
	case left <= 0:
		g.consumer.drop(g)
		g.cancel(interlock.ErrExpired)
		g.end()
	default:
		g.timer.Reset(left)
	}
}

// finish ends the grant with a cause.
func (g *Grant) finish(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lease.End()
	g.cancel(cause)
	g.timer.Stop()
	g.end()
}
