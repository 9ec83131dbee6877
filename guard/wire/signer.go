package wire

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"sync/atomic"
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
	options := *cmp.Or(o, &SignerOptions{})
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

// This file implements PASETO version 4, purpose public. A token consists of a
// header, base64url of message and signature, and base64url of a footer, which
// is signed as well. There is one algorithm, and no field that chooses it.
const pasetoHeader = "v4.public."

// implicit is signed with every token and is not part of it. So a PASETO that the same key
// signed for another purpose is not accepted.
const implicit = "interlock fencing token"

// preAuth returns the unambiguous encoding of the signed pieces: PAE in the specification.
func preAuth(pieces ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(pieces)))
	for _, p := range pieces {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}

func seal(key ed25519.PrivateKey, message, footer, assertion []byte) string {
	signature := ed25519.Sign(key, preAuth([]byte(pasetoHeader), message, footer, assertion))
	text := pasetoHeader + base64.RawURLEncoding.EncodeToString(append(bytes.Clone(message), signature...))
	if len(footer) > 0 {
		text += "." + base64.RawURLEncoding.EncodeToString(footer)
	}
	return text
}

// sealed is a parsed token whose signature is not verified.
type sealed struct{ message, signature, footer []byte }

var errNotPaseto = errors.New("it is not a signed token")

func takeApart(text string) (s sealed, err error) {
	rest, ok := strings.CutPrefix(text, pasetoHeader)
	if !ok || len(text) > MaxText {
		return s, errNotPaseto
	}
	payload, footer, _ := strings.Cut(rest, ".")
	body, err := decode(payload)
	if err != nil || len(body) < ed25519.SignatureSize {
		return s, errNotPaseto
	}
	if s.footer, err = decode(footer); err != nil {
		return s, errNotPaseto
	}
	at := len(body) - ed25519.SignatureSize
	s.message, s.signature = body[:at], body[at:]
	return s, nil
}

// decode accepts only the canonical encoding. The decoder of the standard library ignores line
// ends and trailing bits.
func decode(text string) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil && base64.RawURLEncoding.EncodeToString(b) != text {
		err = errNotPaseto
	}
	return b, err
}

func (s sealed) signedBy(key ed25519.PublicKey, assertion []byte) bool {
	return ed25519.Verify(key, preAuth([]byte(pasetoHeader), s.message, s.footer, assertion), s.signature)
}

// strictly decodes one JSON value and rejects unknown fields, because an unknown field might be
// a restriction.
func strictly(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("it has trailing data")
	}
	return nil
}

// footer names the key.
type footer struct {
	Key string `json:"kid"`
}

// statement is the signed message. Names of three letters are PASETO's own.
type statement struct {
	Audience string `json:"aud,omitempty"`
	Issued   string `json:"iat"`
	Expires  string `json:"exp"`
	Token    string `json:"token"` // a text, since many readers round large numbers
	Resource string `json:"resource"`
	Owner    string `json:"owner,omitempty"`
}

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
