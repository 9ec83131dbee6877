package wire

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
)

// Defaults of [Options].
const (
	DefaultRemaining = 10 * time.Second
	DefaultLongest   = time.Minute
	DefaultMaxAhead  = time.Minute
)

// Options say which tokens a service takes; nil and the zero value work, and
// trust every caller.
type Options struct {
	// Verifier reads signed tokens, and then nothing else is taken; nil means that
	// callers are trusted, and that tokens are not signed.
	Verifier *Verifier
	// Remaining is how long a claim is taken to be good for if the request does
	// not say so; 0 means [DefaultRemaining].
	Remaining time.Duration
	// Longest bounds what a request says; 0 means [DefaultLongest].
	Longest time.Duration
	// MaxAhead is how far a token that is not signed may lie beyond the clock of
	// this process; one that lies further is refused as [Implausible]. It must cover
	// the difference between this clock and those by which the callers' systems
	// issue tokens. 0 means [DefaultMaxAhead], and more than [interlock.MaxAhead]
	// means that. Of signed tokens the bound is interlock.MaxAhead.
	MaxAhead time.Duration
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Wire

	now func() time.Time // the clock; nil means that of the process
}

func (o *Options) resolve() Options {
	var r Options
	if o != nil {
		r = *o
	}
	r.Remaining = cmp.Or(r.Remaining, DefaultRemaining)
	r.Longest = cmp.Or(r.Longest, DefaultLongest)
	r.MaxAhead = min(cmp.Or(r.MaxAhead, DefaultMaxAhead), interlock.MaxAhead)
	r.Hooks = r.Hooks.WithDefaults()
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// Admit reads a token from the values of [Header] and lets it in, until end is
// called or ctx ends; an error is a [*Refusal]. about finds what the request is
// about, as [Resource] does, and is asked once the token was read; nil leaves
// that to [Passage.For]. Requests that come by HTTP are better served by
// [Handler]; this is for what comes by other ways.
func (o *Options) Admit(ctx context.Context, values []string, about func() (string, error)) (p *Passage, end func(), err error) {
	r := o.resolve()
	pass, err := r.read(values)
	if err != nil {
		r.refused(pass, err)
		return nil, nil, err
	}
	pass.Remaining = min(cmp.Or(pass.Remaining, r.Remaining), r.Longest)
	p, end = r.open(ctx, pass)
	if about != nil {
		if err := p.About(about); err != nil {
			end()
			return nil, nil, err
		}
	}
	if r.Hooks.Admitted != nil {
		r.Hooks.Admitted(observe.WireAdmitted{Resource: pass.Resource, Owner: pass.Owner, Token: pass.Token, Remaining: pass.Remaining})
	}
	return p, end, nil
}

// read gives the pass, as far as it was read, also with an error.
func (o *Options) read(values []string) (pass Pass, err error) {
	ahead := o.MaxAhead
	switch {
	case len(values) == 0:
		return pass, &Refusal{Reason: Missing, Detail: "it is carried by the field " + Header}
	case len(values) > 1:
		return pass, &Refusal{Reason: Malformed, Detail: "a request is made under one claim, and this has several tokens"}
	case o.Verifier != nil:
		ahead = interlock.MaxAhead
		pass, err = o.Verifier.Verify(values[0])
	default:
		pass, err = ParsePass(values[0])
	}
	if err == nil {
		err = plausible(pass, o.now(), ahead)
	}
	return pass, err
}

func (o *Options) refused(p Pass, err error) {
	var r *Refusal
	if o.Hooks.Refused != nil && errors.As(err, &r) {
		o.Hooks.Refused(observe.WireRefused{Resource: p.Resource, Owner: p.Owner, Token: p.Token, Reason: string(r.Reason), Err: err})
	}
}
