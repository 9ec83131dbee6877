package wire

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Defaults of [Options].
const (
	DefaultRemaining = 10 * time.Second
	DefaultLongest   = time.Minute
	DefaultMaxAhead  = time.Minute
)

// Options define which tokens a service accepts; nil and the zero value are valid, and trust
// every caller.
type Options struct {
	// Verifier verifies signed tokens, and then no others are accepted. Nil means that callers
	// are trusted and tokens are not signed.
	Verifier *Verifier
	// Remaining is the assumed remaining time of a claim if the request does not state it; 0
	// means [DefaultRemaining].
	Remaining time.Duration
	// Longest bounds the remaining time that a request states; 0 means [DefaultLongest].
	Longest time.Duration
	// MaxAhead is how far an unsigned token may be ahead of this process's clock; a token
	// beyond that is refused as [Implausible]. It must cover the difference between this clock
	// and the clocks of the systems that issue the callers' tokens. 0 means [DefaultMaxAhead],
	// and the maximum is [interlock.MaxAhead]. The bound of signed tokens is
	// interlock.MaxAhead.
	MaxAhead time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Wire

	now func() time.Time // the clock; nil means time.Now
}

func (o *Options) resolve() Options {
	r := *cmp.Or(o, &Options{})
	r.Remaining = cmp.Or(r.Remaining, DefaultRemaining)
	r.Longest = cmp.Or(r.Longest, DefaultLongest)
	r.MaxAhead = min(cmp.Or(r.MaxAhead, DefaultMaxAhead), interlock.MaxAhead)
	r.Hooks = r.Hooks.WithDefaults()
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// Admit parses a token from the values of [Header] and returns its passage, which lasts until
// end is called or ctx ends. An error is a [*Refusal]. about returns the resource of the
// request, as [Resource] does; Admit calls it after it has parsed the token. If it is nil, call
// [Passage.For] instead. Use [Handler] for HTTP requests, and Admit for other transports.
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
	report.Now(r.Hooks.Admitted, observe.WireAdmitted{Resource: pass.Resource, Owner: pass.Owner, Token: pass.Token, Remaining: pass.Remaining})
	return p, end, nil
}

// read returns the pass, as far as it was parsed, even with an error.
func (o *Options) read(values []string) (pass Pass, err error) {
	ahead := o.MaxAhead
	switch {
	case len(values) == 0:
		return pass, &Refusal{Reason: Missing, Detail: "it belongs in the header " + Header}
	case len(values) > 1:
		return pass, &Refusal{Reason: Malformed, Detail: "the request has several tokens; one is allowed"}
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
	if r, found := errors.AsType[*Refusal](err); o.Hooks.Refused != nil && found {
		o.Hooks.Refused(observe.WireRefused{Resource: p.Resource, Owner: p.Owner, Token: p.Token, Reason: string(r.Reason), Err: err})
	}
}

// A Resource returns the resource of a request: the name under which its guard is entered. If
// it returns an error, the response is 400 with the error's text.
type Resource func(*http.Request) (string, error)

// Handler returns a handler that calls next for requests with a token for their resource. It
// answers all other requests with a problem and does not call next; see the package comment.
// The context of next holds the [*Passage], and ends with it.
//
// Handler does not enter a guard: next does, with the passage, in the transaction or the step
// of the store in which it works.
func Handler(resource Resource, next http.Handler, o *Options) http.Handler {
	options := o.resolve()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, end, err := options.Admit(r.Context(), r.Header.Values(Header), func() (string, error) { return resource(r) })
		if err != nil {
			Refuse(w, err)
			return
		}
		defer end()
		next.ServeHTTP(w, r.WithContext(Enclose(p)))
	})
}

type passageKey struct{}

// Enclose returns the passage's context, which holds the passage for [From].
func Enclose(p *Passage) context.Context { return context.WithValue(p.Context(), passageKey{}, p) }

// From returns the passage of the request of ctx. Every request that [Handler] serves has one.
func From(ctx context.Context) (*Passage, bool) {
	p, ok := ctx.Value(passageKey{}).(*Passage)
	return p, ok
}

// A Deadline is measured on two clocks: Go's monotonic clock, which may stop while the machine
// is suspended, and the wall clock, which may be set. The elapsed time is the greater of the
// two. The zero value has passed.
type Deadline struct {
	from time.Time
	left time.Duration
}

// After returns the deadline d after from, a reading of [time.Now].
func After(from time.Time, d time.Duration) Deadline { return Deadline{from, d} }

// Remaining returns the time until the deadline at now, a later reading of the same clock; zero
// or less once it has passed.
func (d Deadline) Remaining(now time.Time) time.Duration {
	monotonic, wall := now.Sub(d.from), now.Round(0).Sub(d.from.Round(0))
	return d.left - max(monotonic, wall)
}
