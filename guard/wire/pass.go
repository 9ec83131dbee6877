package wire

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Header is the HTTP header that carries a token. In lower case it is the key in the
// metadata of gRPC.
const Header = "Interlock-Token"

const (
	// MaxText is the maximum length of the text of a token, in bytes.
	MaxText = 8 << 10
	// MaxOwner is the maximum length of a transmitted owner, in bytes; a longer one is truncated.
	MaxOwner = 256

	longest = 24 * time.Hour // maximum remaining time
)

// A Pass is what a request states about its claim.
type Pass struct {
	Token    interlock.Token
	Resource string // 1 to driver.MaxName bytes of UTF-8 without NUL
	Owner    string // for people; may be empty
	// Remaining is how long the claim was still valid when the Pass was written, in whole
	// milliseconds and at most a day; 0 if unknown.
	Remaining time.Duration
}

// ParsePass parses the result of [Pass.String], and no other text: each Pass has exactly one
// text. An error is a [*Refusal] that is [Malformed].
func ParsePass(text string) (Pass, error) {
	p, err := parsePass(text)
	if err != nil {
		return Pass{}, &Refusal{Reason: Malformed, Detail: err.Error()}
	}
	return p, nil
}

func parsePass(text string) (p Pass, err error) {
	if len(text) > MaxText {
		return p, fmt.Errorf("the token has %d bytes, and %d is the limit", len(text), MaxText)
	}
	number, rest, _ := strings.Cut(text, ";")
	if p.Token, err = interlock.ParseToken(number); err != nil {
		return p, fmt.Errorf("it does not begin with a token")
	}
	for field := range strings.SplitSeq(rest, ";") {
		if err := p.set(field); err != nil {
			return p, err
		}
	}
	if err := p.check(); err != nil {
		return p, err
	}
	if p.String() != text {
		return p, fmt.Errorf("its form is not token;resource=…;owner=…;remaining=…")
	}
	return p, nil
}

// set sets one field. ParsePass detects missing and repeated fields by encoding p again.
func (p *Pass) set(field string) (err error) {
	name, value, _ := strings.Cut(field, "=")
	switch name {
	case "resource":
		p.Resource, err = url.PathUnescape(value)
	case "owner":
		p.Owner, err = url.PathUnescape(value)
	case "remaining":
		var ms int64
		ms, err = strconv.ParseInt(value, 10, 32)
		p.Remaining = time.Duration(ms) * time.Millisecond
	default:
		return fmt.Errorf("it has an unknown field")
	}
	if err != nil {
		return fmt.Errorf("its %s cannot be read", name)
	}
	return nil
}

// check returns an error if a field is out of range.
func (p Pass) check() error {
	switch {
	case !p.Token.Valid():
		return fmt.Errorf("it has no token")
	case p.Resource == "" || len(p.Resource) > driver.MaxName || !clean(p.Resource):
		return fmt.Errorf("a resource has 1 to %d bytes of UTF-8 without NUL", driver.MaxName)
	case len(p.Owner) > MaxOwner || !clean(p.Owner):
		return fmt.Errorf("an owner has at most %d bytes of UTF-8 without NUL", MaxOwner)
	case p.Remaining < 0 || p.Remaining > longest:
		return fmt.Errorf("the remaining time is at most %v", longest)
	}
	return nil
}

func clean(s string) bool { return driver.CheckText("a name", s, 0, len(s)) == nil }

// String returns the text that [Header] carries between parties that trust each other.
func (p Pass) String() string {
	var b strings.Builder
	b.WriteString(p.Token.String() + ";resource=")
	escape(&b, p.Resource)
	if p.Owner != "" {
		b.WriteString(";owner=")
		escape(&b, p.Owner)
	}
	if ms := p.Remaining.Milliseconds(); ms != 0 {
		b.WriteString(";remaining=" + strconv.FormatInt(ms, 10))
	}
	return b.String()
}

// escape writes s for use in a header, in a canonical form.
func escape(b *strings.Builder, s string) {
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~/:@", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(b, "%%%02X", c)
		}
	}
}

// passOf returns the Pass of c at this time. If the claim has ended, it returns the cause. An
// empty resource means the claim's name.
func passOf(c interlock.Claim, resource string) (Pass, error) {
	if resource == "" {
		resource = c.Name()
	}
	p := Pass{Token: c.Token(), Resource: resource, Owner: brief(c.Owner(), MaxOwner),
		Remaining: min(c.Remaining(), longest).Truncate(time.Millisecond)}
	if !c.Valid() || p.Remaining <= 0 {
		return p, over(c, resource)
	}
	if err := p.check(); err != nil {
		return p, &interlock.Error{Op: "carry token", Name: resource, Kind: interlock.Bug,
			Err: fmt.Errorf("%w: %w", interlock.ErrName, err)}
	}
	return p, nil
}

// brief truncates a text for people and makes it storable.
func brief(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), 2*most)], "\uFFFD"), "\x00", "\uFFFD")
	for len(s) > most {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// plausible refuses a token that is more than ahead in the future.
func plausible(p Pass, now time.Time, ahead time.Duration) error {
	if p.Token.Counter() > interlock.CounterAt(now.Add(ahead)) {
		return &Refusal{Reason: Implausible, Resource: p.Resource, Got: p.Token}
	}
	return nil
}

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
