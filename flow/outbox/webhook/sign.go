package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A Signer signs requests.
type Signer interface {
	// Sign returns the value of the header for a content: signatures with their version, separated by
	// spaces.
	Sign(content []byte) string
}

type secret []byte

func (s secret) Sign(content []byte) string {
	return "v1," + base64.StdEncoding.EncodeToString(mac(s, content))
}

type key ed25519.PrivateKey

func (k key) Sign(content []byte) string {
	return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(ed25519.PrivateKey(k), content))
}

type several []Signer

func (s several) Sign(content []byte) string {
	var all []string
	for _, one := range s {
		all = append(all, one.Sign(content))
	}
	return strings.Join(all, " ")
}

// NewSecret returns a Signer that uses HMAC-SHA256 with a secret that the receiver has too. A secret
// that does not have 24 to 64 bytes is a Bug.
func NewSecret(s []byte) (Signer, error) {
	if len(s) < 24 || len(s) > 64 {
		return nil, problem("", interlock.Bug, fmt.Errorf("the secret has %d bytes; 24 to 64 are allowed", len(s)))
	}
	return secret(s), nil
}

// NewKey returns a Signer that uses Ed25519: receivers need the public key only. An invalid key is a
// Bug.
func NewKey(k ed25519.PrivateKey) (Signer, error) {
	if len(k) != ed25519.PrivateKeySize {
		return nil, problem("", interlock.Bug, errors.New("not a private key of Ed25519"))
	}
	return key(k), nil
}

// Both returns a Signer that signs with all signers, for a change of secrets or keys.
func Both(signers ...Signer) Signer { return several(signers) }

func mac(secret, content []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(content)
	return h.Sum(nil)
}

// signed returns the content to sign.
func signed(id string, at int64, body []byte) []byte {
	return append([]byte(id+"."+strconv.FormatInt(at, 10)+"."), body...)
}

// DefaultTolerance is the largest difference between a timestamp and the receiver's clock.
const DefaultTolerance = 5 * time.Minute

// ErrSignature means that no known sender signed the request recently: answer 401.
var ErrSignature = errors.New("the signature does not match")

// A Verifier verifies that a request is from a sender with one of its secrets or keys. It does not detect
// repeated requests: use guard/once.
type Verifier struct {
	Secrets   [][]byte            // of senders
	Keys      []ed25519.PublicKey // of senders
	Tolerance time.Duration       // between the timestamp and the clock; 0 means DefaultTolerance
	MaxBody   int64               // in bytes; 0 means 1 MiB
	Now       func() time.Time    // nil means time.Now
}

// Read reads and verifies a request, and returns the message. After an error do not handle it; an
// [ErrSignature] means that it is not from a known sender. Topic and Key are not signed. The headers are
// those of the request.
func (v Verifier) Read(r *http.Request) (driver.Message, error) {
	most := v.MaxBody
	if most <= 0 {
		most = 1 << 20
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, max(most, most+1)))
	if err != nil {
		return driver.Message{}, problem("", interlock.Retryable, err)
	}
	if int64(len(body)) > most {
		return driver.Message{}, problem("", interlock.Definite, fmt.Errorf("the body has more than %d bytes", most))
	}
	m := driver.Message{ID: r.Header.Get(HeaderID), Payload: body, Headers: map[string]string{}}
	for name := range r.Header {
		m.Headers[name] = r.Header.Get(name)
	}
	if err := v.Verify(r.Header, body); err != nil {
		return driver.Message{}, err
	}
	m.Topic, err = url.PathUnescape(r.Header.Get(HeaderTopic))
	if err == nil {
		m.Key, err = url.PathUnescape(r.Header.Get(HeaderKey))
	}
	if err != nil {
		return driver.Message{}, problem(m.ID, interlock.Definite, err)
	}
	return m, nil
}

// Verify checks the headers of a request against its body, and returns nil or an
// [ErrSignature].
func (v Verifier) Verify(h http.Header, body []byte) error {
	id := h.Get(HeaderID)
	refuse := func(why string) error {
		return problem(id, interlock.Definite, fmt.Errorf("%w: %s", ErrSignature, why))
	}
	at, err := driver.ParseInt(h.Get(HeaderTimestamp))
	if err != nil || driver.CheckMessageID(id) != nil {
		return refuse("no valid id or timestamp")
	}
	now, tolerance := time.Now, v.Tolerance
	if v.Now != nil {
		now = v.Now
	}
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	if now().Sub(time.Unix(at, 0)).Abs() > tolerance {
		return refuse("the timestamp is outside of the tolerance")
	}
	content := signed(id, at, body)
	for _, one := range strings.Fields(h.Get(HeaderSignature)) {
		version, encoded, _ := strings.Cut(one, ",")
		signature, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err == nil && v.fits(version, signature, content) {
			return nil
		}
	}
	return refuse("no signature is by a known secret or key")
}

func (v Verifier) fits(version string, signature, content []byte) bool {
	switch version {
	case "v1":
		for _, s := range v.Secrets {
			if len(s) > 0 && hmac.Equal(mac(s, content), signature) {
				return true
			}
		}
	case "v1a":
		for _, k := range v.Keys {
			if len(k) == ed25519.PublicKeySize && ed25519.Verify(k, content, signature) {
				return true
			}
		}
	}
	return false
}
