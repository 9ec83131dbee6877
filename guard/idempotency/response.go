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

// A Response is the answer to a request and to its retries.
type Response struct {
	Status int         // of HTTP, or defined by the caller
	Header http.Header // may be nil
	Body   []byte
	digest string // set if the body was too long; then Body is empty
	// Replayed reports that this is the stored answer, and that nothing was executed.
	Replayed bool
}

// keep returns the response in its stored form. If the body has more than most bytes, only its
// digest is stored.
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

// replay returns the stored response. Header values are not validated: they were already sent
// once.
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
