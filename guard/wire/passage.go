package wire

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Passage is the claim of a request, as the service sees it. It lasts as long as the request.
// It lasts at most as long as the claim was valid when the request was sent, counted from its
// arrival. It is an [interlock.Claim], so guards accept it.
//
// The service does not know how long the request was in transit. So a Passage may seem valid
// for that much longer than its claim is: it bounds the work, and the guard makes it safe.
type Passage struct {
	pass    Pass
	ctx     context.Context
	until   Deadline
	options *Options
}

var _ interlock.Claim = (*Passage)(nil)

// Name returns the resource of the token.
func (p *Passage) Name() string { return p.pass.Resource }

// Owner returns the holder of the claim, as the request states it; for people.
func (p *Passage) Owner() string { return p.pass.Owner }

// Token returns the token for a guard.
func (p *Passage) Token() interlock.Token { return p.pass.Token }

// Context returns a context that ends with the request, with [interlock.ErrExpired] when the
// claim's time is over, and with [interlock.ErrReleased] when the handler has returned.
func (p *Passage) Context() context.Context { return p.ctx }

// Remaining returns an upper bound of how long the claim is still valid.
func (p *Passage) Remaining() time.Duration {
	if p.ctx.Err() != nil {
		return 0
	}
	return p.until.Remaining(p.options.now())
}

// Valid reports whether the passage is valid, by the current clock.
func (p *Passage) Valid() bool { return p.Remaining() > 0 }

// For returns a [*Refusal] if the passage is for another resource.
func (p *Passage) For(resource string) error {
	if p.pass.Resource == resource {
		return nil
	}
	return p.refused(&Refusal{Reason: WrongResource, Resource: p.pass.Resource, Got: p.pass.Token,
		Detail: fmt.Sprintf("the request is about %q", resource)})
}

// About returns a [*Refusal] if the passage is not for the resource that find returns, or if
// find fails.
func (p *Passage) About(find func() (string, error)) error {
	name, err := find()
	if err != nil {
		return p.refused(&Refusal{Reason: Malformed, Got: p.pass.Token, Detail: err.Error()})
	}
	return p.For(name)
}

func (p *Passage) refused(r *Refusal) error {
	p.options.refused(p.pass, r)
	return r
}

// open makes p a claim until end is called.
func (o *Options) open(ctx context.Context, p Pass) (passage *Passage, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, stop := context.WithTimeoutCause(ctx, p.Remaining, interlock.ErrExpired)
	passage = &Passage{pass: p, ctx: ctx, until: After(o.now(), p.Remaining), options: o}
	return passage, func() { cancel(interlock.ErrReleased); stop() }
}
