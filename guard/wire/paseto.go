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

// What follows is PASETO version 4, purpose public, as its specification has it:
// header, base64url of message and signature, and base64url of a footer, which
// is signed as well. There is one algorithm, and no field that chooses it.
const pasetoHeader = "v4.public."

// implicit is signed with every token, and not in it: a PASETO that the same key
// signed for another purpose is none of ours.
const implicit = "interlock fencing token"

// preAuth is PAE, the encoding of the pieces that are signed: none can be taken
// for a part of another.
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

// sealed is a token that was taken apart, and whose signature nobody has looked
// at.
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

// decode takes the one encoding that there is: the decoder of the library reads
// over line ends, and bits that are left over.
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

// strictly decodes one JSON value without fields that are not known: what we do
// not understand might be a restriction.
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
