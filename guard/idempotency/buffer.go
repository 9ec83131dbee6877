package idempotency

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/http"
)

// ErrStreaming is what a handler has from flushing or hijacking behind [Handler]: an
// answer is shown when it is durable, and as a whole. It is an http.ErrNotSupported.
var ErrStreaming = fmt.Errorf("idempotency: an answer that is to be replayed cannot be streamed: %w", http.ErrNotSupported)

// buffer is the answer of a handler while it is made.
type buffer struct {
	header http.Header // what the handler works on
	sent   http.Header // as it was when the status was written
	status int         // 0 until then
	body   bytes.Buffer
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
	return b.body.Write(p)
}

// FlushError is for http.ResponseController.
func (b *buffer) FlushError() error { return ErrStreaming }

// Hijack is for http.ResponseController and whoever asks for a http.Hijacker.
func (b *buffer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrStreaming }

// response is the answer, once the handler has returned.
func (b *buffer) response() Response {
	b.WriteHeader(http.StatusOK)
	return Response{Status: b.status, Header: b.sent, Body: b.body.Bytes()}
}

// send writes an answer to a client.
func (r Response) send(w http.ResponseWriter) {
	for name, values := range r.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(cmp.Or(r.Status, http.StatusOK))
	_, _ = w.Write(r.Body) // a client that is gone asks again
}
