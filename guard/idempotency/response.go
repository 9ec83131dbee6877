package idempotency

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net"
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

// ErrStreaming is returned if a handler behind [Handler] flushes or hijacks the connection. An
// answer is sent as a whole, once it is durable. It wraps http.ErrNotSupported.
var ErrStreaming = fmt.Errorf("idempotency: an answer that is to be replayed cannot be streamed: %w", http.ErrNotSupported)

// buffer collects the answer of a handler. If the answer is too large, the handler still runs
// to its end, because its other effects happen only once.
type buffer struct {
	header http.Header // the handler's header map
	sent   http.Header // a copy from when the status was written
	status int         // 0 until then
	most   int         // maximum size of the body in bytes
	body   bytes.Buffer
	digest hash.Hash // set if the body is larger; then body is empty
}

func (b *buffer) Header() http.Header { return b.header }

// WriteHeader stores the first status from 200 on. Informational statuses are ignored.
func (b *buffer) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http has it
	}
	if b.status == 0 && status >= 200 {
		b.status, b.sent = status, b.header.Clone()
	}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	if b.status == http.StatusNoContent || b.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if b.digest == nil && len(p) > b.most-b.body.Len() {
		b.digest = sha256.New()
		b.digest.Write(b.body.Bytes())
		b.body = bytes.Buffer{}
	}
	if b.digest != nil {
		return b.digest.Write(p)
	}
	return b.body.Write(p)
}

// FlushError returns ErrStreaming to an http.ResponseController.
func (b *buffer) FlushError() error { return ErrStreaming }

// Hijack returns ErrStreaming to an http.ResponseController and to users of http.Hijacker.
func (b *buffer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrStreaming }

// response returns the answer after the handler has returned.
func (b *buffer) response() Response {
	b.WriteHeader(http.StatusOK)
	r := Response{Status: b.status, Header: b.sent, Body: b.body.Bytes()}
	if b.digest != nil {
		r.digest = hex.EncodeToString(b.digest.Sum(nil))
	}
	return r
}

// send writes an answer to a client.
func (r Response) send(w http.ResponseWriter) {
	for name, values := range r.Header {
		if name != "Trailer" && !strings.HasPrefix(name, http.TrailerPrefix) { // a replay has none
			w.Header()[name] = values
		}
	}
	w.WriteHeader(cmp.Or(r.Status, http.StatusOK))
	_, _ = w.Write(r.Body) // a disconnected client retries
}
