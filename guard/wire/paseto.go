package wire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// This file implements PASETO version 4, purpose public. A token consists of a
// header, base64url of message and signature, and base64url of a footer, which
// is signed as well. There is one algorithm, and no field that chooses it.
const pasetoHeader = "v4.public."

// implicit is signed with every token and is not part of it. So a PASETO that the same key
// signed for another purpose is not accepted.
const implicit = "interlock fencing token"

// preAuth is PAE, the unambiguous encoding of the signed pieces.
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
