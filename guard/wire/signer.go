package wire

import (
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// DefaultLife is the default of SignerOptions.Life.
const DefaultLife = time.Minute

// timeForm is the format of signed times: RFC 3339, in UTC.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

// SignerOptions configure a [Signer]; nil and the zero value are valid.
type SignerOptions struct {
	// Life bounds how long a signed token is valid; 0 means [DefaultLife]. It is never valid
	// for longer than the claim was when the token was signed.
	Life time.Duration

	now func() time.Time
}

// A Signer signs the tokens of claims, so that a [Verifier] accepts them from any bearer. It
// belongs in the process of the claim; an untrusted caller receives the text, and never the
// key. It is safe for concurrent use.
type Signer struct {
	key    ed25519.PrivateKey
	footer []byte
	life   time.Duration
	now    func() time.Time
}

// NewSigner returns a Signer with key, which verifiers know under the id: 1 to 64 visible ASCII
// characters.
func NewSigner(id string, key ed25519.PrivateKey, o *SignerOptions) (*Signer, error) {
	if len(key) != ed25519.PrivateKeySize || !keyID(id) {
		return nil, failure.Bug("make signer", id, "it needs a key of Ed25519 and an id of 1 to 64 visible characters")
	}
	var options SignerOptions
	if o != nil {
		options = *o
	}
	s := &Signer{key: key, life: cmp.Or(options.Life, DefaultLife), now: options.now}
	if s.life < time.Millisecond {
		return nil, failure.Bug("make signer", id, "a token cannot last for %v", s.life)
	}
	if s.now == nil {
		s.now = time.Now
	}
	var err error
	s.footer, err = json.Marshal(footer{id})
	return s, err
}

func keyID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return len(id) >= 1 && len(id) <= 64
}

// Sign returns the signed token of c for resource and audience. An empty resource means the
// name of c. The audience is the service that accepts the token; empty means a verifier without
// one. The token is valid for the claim's remaining time, at most the signer's Life. If the
// claim has ended, Sign returns the cause. It also returns an error if the token is more than
// [interlock.MaxAhead] ahead of the clock.
func (s *Signer) Sign(c interlock.Claim, resource, audience string) (string, error) {
	p, err := passOf(c, resource)
	if err != nil {
		return "", err
	}
	now := s.now()
	if err := plausible(p, now, interlock.MaxAhead); err != nil {
		return "", err
	}
	message, err := json.Marshal(statement{Audience: audience, Issued: instant(now), Expires: instant(now.Add(min(p.Remaining, s.life))),
		Token: p.Token.String(), Resource: p.Resource, Owner: p.Owner})
	if err != nil {
		return "", failure.Bug("sign token", p.Resource, "%w", err)
	}
	text := seal(s.key, message, s.footer, []byte(implicit))
	if len(text) > MaxText {
		return "", failure.Bug("sign token", p.Resource, "it would have %d bytes, and %d is the limit", len(text), MaxText)
	}
	return text, nil
}

// instant formats t, truncated to a millisecond.
func instant(t time.Time) string { return t.UTC().Format(timeForm) }
