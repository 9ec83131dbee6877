package testbed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
)

// Claim is an interlock.Claim that lasts for a time, or until the test ends it.
type Claim struct {
	Resource, Holder string // what Name and Owner return
	Number           interlock.Token
	Stubborn         bool // it always lasts for its TTL, as if renewed
	End              context.CancelCauseFunc

	ctx   context.Context
	ttl   time.Duration
	until atomic.Int64 // in ns since 1970
}

// NewClaim returns a claim that lasts for ttl.
func NewClaim(name, owner string, token interlock.Token, ttl time.Duration) *Claim {
	c := &Claim{Resource: name, Holder: owner, Number: token, ttl: ttl}
	c.ctx, c.End = context.WithCancelCause(context.Background())
	c.Renew(ttl)
	return c
}

// Renew makes the claim last for ttl from now on.
func (c *Claim) Renew(ttl time.Duration) { c.until.Store(time.Now().Add(ttl).UnixNano()) }

// Name returns Resource.
func (c *Claim) Name() string { return c.Resource }

// Owner returns Holder.
func (c *Claim) Owner() string { return c.Holder }

// Token returns Number.
func (c *Claim) Token() interlock.Token { return c.Number }

// Context returns a context that End ends.
func (c *Claim) Context() context.Context { return c.ctx }

// Valid reports whether time remains.
func (c *Claim) Valid() bool { return c.Remaining() > 0 }

// Remaining returns the time that remains, 0 after End.
func (c *Claim) Remaining() time.Duration {
	switch {
	case c.ctx.Err() != nil:
		return 0
	case c.Stubborn:
		return c.ttl
	}
	return time.Until(time.Unix(0, c.until.Load()))
}
