package wire

import (
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// DefaultLife is how long a signed token lasts at most if nothing is said.
const DefaultLife = time.Minute

// timeForm is how instants are signed: RFC 3339, in UTC.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

// SignerOptions are those of [NewSigner]; nil and the zero value work.
type SignerOptions struct {
	// Life bounds how long a signed token lasts; 0 means [DefaultLife]. It never
	// lasts longer than the claim was good for when it was signed.
	Life time.Duration

	now func() time.Time
}

// A Signer writes the tokens of claims so that a [Verifier] believes them
// from any bearer. It belongs where the claim is; the caller that is not
// trusted gets the text, and never the key. It is safe for concurrent use.
type Signer struct {
	key    ed25519.PrivateKey
	footer []byte
	life   time.Duration
	now    func() time.Time
}

// NewSigner signs with key, which verifiers know under the id: 1 to 64 visible
// ASCII characters.
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

// Sign writes the token of c for resource, or for the name of c if that is
// empty, and for audience, which is the service that is to take it; empty means
// that of a verifier with none. It lasts as long as c has left, and as the
// signer's Life at most. It refuses a claim that has ended, with the cause, and a
// token that lies beyond the clock by more than [interlock.MaxAhead].
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

// instant is t, cut to a millisecond.
func instant(t time.Time) string { return t.UTC().Format(timeForm) }
