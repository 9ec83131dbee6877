package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A Response is what a request is answered with: the first time, and each time
// that it is made again.
type Response struct {
	Status int         // of HTTP, or whatever the caller means by it
	Header http.Header // may be nil
	Body   []byte
	digest string // of a body that was too long to be held; Body is empty then
	// Replayed says that it was given before, and that nothing was run this time.
	Replayed bool
}

// keep is the response as a store has it: of a body of more than most bytes, only
// its digest.
func (r Response) keep(most int) *driver.IdempotencyAnswer {
	a := &driver.IdempotencyAnswer{Status: r.Status, Body: r.Body, Digest: r.digest}
	var header bytes.Buffer
	_ = r.Header.Write(&header) // a buffer takes everything
	a.Header = header.Bytes()
	if len(r.Body) > most {
		sum := sha256.Sum256(r.Body)
		a.Body, a.Digest = nil, hex.EncodeToString(sum[:])
	}
	return a
}

// replay is the response that a store has kept. What a header's value may be is not
// judged: it was shown, and goes out as it did then.
func replay(key string, a driver.IdempotencyAnswer) (Response, error) {
	if a.Digest != "" {
		return Response{}, &NotKeptError{Key: key, Status: a.Status, Digest: a.Digest}
	}
	header := http.Header{}
	for line := range strings.Lines(string(a.Header)) {
		name, value, found := strings.Cut(strings.TrimSuffix(line, "\r\n"), ": ")
		if !found {
			return Response{}, &interlock.Error{Op: "replay answer", Name: key, Kind: interlock.Definite,
				Err: fmt.Errorf("the record is damaged: it has a header of %q", line)}
		}
		header.Add(name, value)
	}
	return Response{Status: a.Status, Header: header, Body: a.Body, Replayed: true}, nil
}
