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
)

// ErrStreaming is what a handler has from flushing or hijacking behind [Handler]: an
// answer is shown when it is durable, and as a whole. It is an http.ErrNotSupported.
var ErrStreaming = fmt.Errorf("idempotency: an answer that is to be replayed cannot be streamed: %w", http.ErrNotSupported)

// buffer is the answer of a handler while it is made. A handler that writes too much
// is not stopped: what it does beside is done once all the same.
type buffer struct {
	header http.Header // what the handler works on
	sent   http.Header // as it was when the status was written
	status int         // 0 until then
	most   int         // bytes that the body may have
	body   bytes.Buffer
	digest hash.Hash // of a body that has more, which is not held; nil otherwise
}

func (b *buffer) Header() http.Header { return b.header }

// WriteHeader takes the first status that ends an answer; those that only inform,
// below 200, are not passed on.
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

// FlushError is for http.ResponseController.
func (b *buffer) FlushError() error { return ErrStreaming }

// Hijack is for http.ResponseController and for users of a http.Hijacker.
func (b *buffer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrStreaming }

// response is the answer, once the handler has returned.
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
		w.Header()[name] = values
	}
	w.WriteHeader(cmp.Or(r.Status, http.StatusOK))
	_, _ = w.Write(r.Body) // a client that is gone asks again
}
