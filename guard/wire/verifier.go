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

// VerifierOptions configure a [Verifier]; nil and the zero value are valid.
type VerifierOptions struct {
	// Skew is the maximum difference of the signer's clock to this one, in either direction; 0
	// means [DefaultSkew], and a negative value means none.
	Skew time.Duration
	// MaxLife is the maximum lifetime of a token from its signing; 0 means [DefaultMaxLife].
	MaxLife time.Duration

	now func() time.Time
}

// A Verifier accepts tokens that were signed by known keys for its audience, and that have not
// expired. It verifies at most one signature per token, and none for an unknown key. It is safe
// for concurrent use.
type Verifier struct {
	audience string
	keys     atomic.Pointer[map[string]ed25519.PublicKey]
	skew     time.Duration
	maxLife  time.Duration
	now      func() time.Time
}

// NewVerifier returns a Verifier that accepts signatures of keys, by their ids, for audience.
func NewVerifier(audience string, keys map[string]ed25519.PublicKey, o *VerifierOptions) (*Verifier, error) {
	options := *cmp.Or(o, &VerifierOptions{})
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

// SetKeys replaces the accepted keys, for every token from now on. To rotate: add the new key
// here, then let signers use it, and remove the old one once its tokens have expired.
func (v *Verifier) SetKeys(keys map[string]ed25519.PublicKey) error {
	for id, key := range keys {
		if len(key) != ed25519.PublicKeySize || !keyID(id) {
			return failure.Bug("set keys", id, "it needs keys of Ed25519 with ids of 1 to 64 visible characters")
		}
		if [ed25519.PublicKeySize]byte(key) == ([ed25519.PublicKeySize]byte{}) { // an unset key, for which anyone can sign
			return failure.Bug("set keys", id, "the key is all zeros")
		}
	}
	keys = maps.Clone(keys)
	v.keys.Store(&keys)
	return nil
}

// Verify parses and verifies the result of [Signer.Sign]. An error is a [*Refusal]. Remaining
// is the time until the token expires, by this clock with the allowed skew, and never longer
// than the time from signing to expiry.
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

// believe parses a message whose signature is valid.
func (v *Verifier) believe(message []byte) (p Pass, err error) {
	var m statement
	if err := strictly(message, &m); err != nil {
		return p, &Refusal{Reason: Malformed, Detail: "the signed message is not the token of a claim"}
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
