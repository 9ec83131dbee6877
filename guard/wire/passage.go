package wire

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Passage is a claim as the service sees it to which a request was made under
// it: for as long as the request, and no longer than the claim was good for when
// it was sent, counted from when it came. It is an [interlock.Claim], so that
// guards take it.
//
// The time that the request was on its way is not known here, so a Passage may
// be thought valid for that much longer than the claim is: it bounds the work,
// and the guard makes it safe.
type Passage struct {
	pass    Pass
	ctx     context.Context
	until   Deadline
	options *Options
}

var _ interlock.Claim = (*Passage)(nil)

// Name is the resource that the token is for.
func (p *Passage) Name() string { return p.pass.Resource }

// Owner is who holds the claim, as the request says; for people.
func (p *Passage) Owner() string { return p.pass.Owner }

// Token is what a guard wants.
func (p *Passage) Token() interlock.Token { return p.pass.Token }

// Context ends with the request, with [interlock.ErrExpired] when the claim's
// time is over, and with [interlock.ErrReleased] when the handler has returned.
func (p *Passage) Context() context.Context { return p.ctx }

// Remaining is how long the claim may still be good for.
func (p *Passage) Remaining() time.Duration {
	if p.ctx.Err() != nil {
		return 0
	}
	return p.until.Remaining(p.options.now())
}

// Valid compares the clock on the spot.
func (p *Passage) Valid() bool { return p.Remaining() > 0 }

// For refuses a passage that is for another resource, with a [*Refusal].
func (p *Passage) For(resource string) error {
	if p.pass.Resource == resource {
		return nil
	}
	return p.refused(&Refusal{Reason: WrongResource, Resource: p.pass.Resource, Got: p.pass.Token,
		Detail: fmt.Sprintf("the request is about %q", resource)})
}

// About refuses a passage that is not for what find says, or if that fails, with a
// [*Refusal] that shows why.
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
