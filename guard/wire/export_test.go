package wire

import (
	"crypto/ed25519"
	"time"
)

// At returns options with a clock of the test.
func (o Options) At(now func() time.Time) *Options {
	o.now = now
	return &o
}

func (o SignerOptions) At(now func() time.Time) *SignerOptions {
	o.now = now
	return &o
}

func (o VerifierOptions) At(now func() time.Time) *VerifierOptions {
	o.now = now
	return &o
}

// Seal signs any message, like a faulty signer.
func Seal(key ed25519.PrivateKey, message, footer, assertion string) string {
	return seal(key, []byte(message), []byte(footer), []byte(assertion))
}

const Implicit = implicit
