package wire

import (
	"cmp"
	"crypto/ed25519"
	"maps"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Defaults of [VerifierOptions].
const (
	DefaultSkew    = 5 * time.Second
	DefaultMaxLife = 5 * time.Minute
)

// VerifierOptions are those of [NewVerifier]; nil and the zero value work.
type VerifierOptions struct {
	// Skew is how far the signer's clock may be from this one, either way; 0
	// means [DefaultSkew], and less than 0 that they are the same.
	Skew time.Duration
	// MaxLife is how long a token may last from when it was signed; 0 means
	// [DefaultMaxLife].
	MaxLife time.Duration

	now func() time.Time
}

// A Verifier believes tokens that were signed by keys that it knows, for its
// audience, and that have not expired. It does at most one verification for a
// token, however bad, and none for a key that it does not know. It is safe for
// concurrent use.
type Verifier struct {
	audience string
	keys     atomic.Pointer[map[string]ed25519.PublicKey]
	skew     time.Duration
	maxLife  time.Duration
	now      func() time.Time
}

// NewVerifier believes keys, by their ids, and takes what was signed for
// audience.
func NewVerifier(audience string, keys map[string]ed25519.PublicKey, o *VerifierOptions) (*Verifier, error) {
	var options VerifierOptions
	if o != nil {
		options = *o
	}
	v := &Verifier{audience: audience, skew: max(0, cmp.Or(options.Skew, DefaultSkew)),
		maxLife: cmp.Or(options.MaxLife, DefaultMaxLife), now: options.now}
	if v.maxLife < 0 {
		return nil, failure.Bug("make verifier", audience, "a token cannot last for %v", v.maxLife)
	}
	if v.now == nil {
		v.now = time.Now
	}
	return v, v.SetKeys(keys)
}

// SetKeys replaces the keys that are believed, at once for every token that
// comes from now on. To rotate: add the new key here, then let signers use it,
// and take the old one away once what it signed has expired.
func (v *Verifier) SetKeys(keys map[string]ed25519.PublicKey) error {
	for id, key := range keys {
		if len(key) != ed25519.PublicKeySize || !keyID(id) {
			return failure.Bug("set keys", id, "it needs keys of Ed25519 with ids of 1 to 64 visible characters")
		}
		if [ed25519.PublicKeySize]byte(key) == ([ed25519.PublicKeySize]byte{}) { // nobody has set it, and anybody can sign for it
			return failure.Bug("set keys", id, "a key of zeros is none")
		}
	}
	keys = maps.Clone(keys)
	v.keys.Store(&keys)
	return nil
}

// Verify reads what [Signer.Sign] wrote. An error is a [*Refusal]. Remaining is
// until the token expires, by this clock with the skew that is allowed, and
// never longer than from when it was signed.
func (v *Verifier) Verify(text string) (Pass, error) {
	s, err := takeApart(text)
	if err != nil {
		return Pass{}, forged("a signed token is required")
	}
	var by footer
	if strictly(s.footer, &by) != nil {
		return Pass{}, forged("it does not name its key")
	}
	key, ok := (*v.keys.Load())[by.Key]
	if !ok {
		return Pass{}, forged("its key is not known, or not any more")
	}
	if !s.signedBy(key, []byte(implicit)) {
		return Pass{}, forged("the signature is wrong")
	}
	return v.believe(s.message)
}

// believe reads a message whose signature is right.
func (v *Verifier) believe(message []byte) (p Pass, err error) {
	var m statement
	if err := strictly(message, &m); err != nil {
		return p, &Refusal{Reason: Malformed, Detail: "what was signed is not a claim's token"}
	}
	p = Pass{Resource: m.Resource, Owner: m.Owner}
	if p.Token, err = interlock.ParseToken(m.Token); err == nil {
		err = p.check()
	}
	if err != nil {
		return Pass{}, &Refusal{Reason: Malformed, Detail: err.Error()}
	}
	if m.Audience != v.audience {
		return p, &Refusal{Reason: WrongResource, Resource: p.Resource, Got: p.Token, Detail: "it was signed for another audience"}
	}
	p.Remaining, err = v.timely(p, m)
	return p, err
}

func (v *Verifier) timely(p Pass, m statement) (remaining time.Duration, err error) {
	issued, err := time.Parse(time.RFC3339, m.Issued)
	expires, err2 := time.Parse(time.RFC3339, m.Expires)
	if err != nil || err2 != nil {
		return 0, &Refusal{Reason: Malformed, Detail: "its times cannot be read"}
	}
	life, now := expires.Sub(issued), v.now()
	remaining = min(expires.Add(v.skew).Sub(now), life)
	why := ""
	switch {
	case life > v.maxLife:
		why = "it lasts for longer than is allowed"
	case issued.After(now.Add(v.skew)):
		why = "it was signed in the future"
	case remaining <= 0:
		why = "it has expired"
	default:
		return remaining, nil
	}
	return 0, &Refusal{Reason: Untimely, Resource: p.Resource, Got: p.Token, Detail: why}
}

func forged(detail string) error { return &Refusal{Reason: Forged, Detail: detail} }
