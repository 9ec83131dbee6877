package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
)

// bearer is what requests are made under.
type bearer struct {
	claim    interlock.Claim // nil if there is only a text
	resource string
	signed   string
}

type bearerKey struct{}

// Under is ctx under c: requests that are made with it by way of a [Transport],
// or of package guard/rpc, carry the token of c for resource. Empty resource
// means the name of c. It does not end ctx when c ends; the Transport does so for
// each request.
func Under(ctx context.Context, c interlock.Claim, resource string) context.Context {
	return context.WithValue(ctx, bearerKey{}, bearer{claim: c, resource: resource})
}

// Carry is ctx with a token that somebody signed for the caller, which is sent
// as it is. When it ends is the affair of who verifies it.
func Carry(ctx context.Context, signed string) context.Context {
	return context.WithValue(ctx, bearerKey{}, bearer{signed: signed})
}

// Outgoing is the token that a request made with ctx carries, written for
// audience by signer or, if that is nil, as it is. ok is false if ctx is under no
// claim. It refuses a claim that has ended, with the cause: an error is Definite,
// and nothing must be sent.
//
// joined is ctx, ended also with the claim; stop lets go of both. It is for
// transports other than [Transport].
func Outgoing(ctx context.Context, signer *Signer, audience string) (value string, joined context.Context, stop func(), ok bool, err error) {
	b, ok := ctx.Value(bearerKey{}).(bearer)
	switch {
	case !ok:
		return "", ctx, func() {}, false, nil
	case b.claim == nil:
		return b.signed, ctx, func() {}, true, nil
	}
	value, err = b.write(signer, audience)
	if err != nil {
		return "", ctx, func() {}, true, err
	}
	joined, stop = join.Context(ctx, b.claim.Context())
	return value, joined, stop, true, nil
}

func (b bearer) write(signer *Signer, audience string) (string, error) {
	if signer != nil {
		return signer.Sign(b.claim, b.resource, audience)
	}
	p, err := passOf(b.claim, b.resource)
	return p.String(), err
}

// A Transport is an [http.RoundTripper] that puts the claim's token on each
// request that is made [Under] one, and ends the request, up to the end of the
// response's body, when the claim ends. The zero value works. It is safe for
// concurrent use.
//
// A claim that has ended is refused before anything is sent: the error is
// Definite and wraps the cause. If the claim ends while the request is on its
// way, the error is Uncertain and wraps the cause as well. A request that is
// under no claim is sent as it is. One that follows a redirect to another host,
// or from https to http, is sent without the token.
type Transport struct {
	Base     http.RoundTripper // nil means http.DefaultTransport
	Signer   *Signer           // nil means that tokens travel as they are
	Audience string            // that tokens are signed for
}

// RoundTrip sends one request; see [Transport].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if strayed(req) {
		return base.RoundTrip(req)
	}
	value, ctx, stop, under, err := Outgoing(req.Context(), t.Signer, t.Audience)
	if !under {
		return base.RoundTrip(req)
	}
	if err != nil {
		if req.Body != nil {
			req.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	sent := req.Clone(ctx)
	sent.Header.Set(Header, value)
	resp, err := base.RoundTrip(sent)
	if err != nil {
		defer stop()
		return nil, blame(ctx, req.Context(), err)
	}
	resp.Body = held(resp.Body, stop)
	return resp, nil
}

// strayed reports whether a redirect led away from where the caller sent its
// request.
func strayed(req *http.Request) bool {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	return first.URL.Host != req.URL.Host || first.URL.Scheme != req.URL.Scheme && req.URL.Scheme != "https"
}

// blame names the end of the claim as the reason, if it is.
func blame(joined, callers context.Context, err error) error {
	if joined.Err() == nil || callers.Err() != nil {
		return err
	}
	return &interlock.Error{Op: "send request under claim", Kind: interlock.Uncertain, Err: errors.Join(context.Cause(joined), err)}
}

// held calls stop once body is at its end or is closed. A body that can be
// written to, of a connection that changed its protocol, stays so.
func held(body io.ReadCloser, stop func()) io.ReadCloser {
	h := &holding{ReadCloser: body, stop: sync.OnceFunc(stop)}
	if w, ok := body.(io.Writer); ok {
		return struct {
			*holding
			io.Writer
		}{h, w}
	}
	return h
}

type holding struct {
	io.ReadCloser
	stop func()
}

func (h *holding) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if err != nil {
		h.stop()
	}
	return n, err
}

func (h *holding) Close() error {
	defer h.stop()
	return h.ReadCloser.Close()
}
