package wire

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
)

// bearer is the claim or signed token of a context.
type bearer struct {
	claim    interlock.Claim // nil if there is only a text
	resource string
	signed   string
}

type bearerKey struct{}

// Under returns a ctx with claim c: requests with it through a [Transport], or through package
// guard/rpc, carry the token of c for resource. An empty resource means the name of c. Under
// does not end ctx when c ends; the Transport does so for each request.
func Under(ctx context.Context, c interlock.Claim, resource string) context.Context {
	return context.WithValue(ctx, bearerKey{}, bearer{claim: c, resource: resource})
}

// Carry returns a ctx with a token that another process signed, which is sent unchanged. Its
// verifier decides when it expires.
func Carry(ctx context.Context, signed string) context.Context {
	return context.WithValue(ctx, bearerKey{}, bearer{signed: signed})
}

// Outbound is the token and the context for a request.
type Outbound struct {
	Value   string          // of [Header]
	Context context.Context // for the request; it also ends with the claim
	Stop    func()          // releases resources; call it after the request

	ends []context.Context // the contexts that end Context: the claim's and the caller's
}

// Outcome returns the error of a sent request as the caller should see it. Once the claim or
// the caller's context has ended, the error is Uncertain and wraps the cause. Clients return
// that cause unchanged, whatever they have sent, though elsewhere a cause may prove that
// nothing was sent. Any other error, and nil, is returned unchanged.
func (o Outbound) Outcome(err error) error {
	if err == nil {
		return nil
	}
	for _, ctx := range o.ends {
		if ctx.Err() == nil {
			continue
		}
		if cause := context.Cause(ctx); !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		return &interlock.Error{Op: "send request under claim", Kind: interlock.Uncertain, Err: err}
	}
	return err
}

// Outgoing returns the token and the context for a request with ctx, for transports other than
// [Transport]. The token is signed for audience by signer, or unsigned if signer is nil. If ctx
// has no claim, ok is false, Context is ctx, and Value is empty. If the claim has ended,
// Outgoing returns a Definite error with the cause, and the caller must send nothing.
func Outgoing(ctx context.Context, signer *Signer, audience string) (out Outbound, ok bool, err error) {
	out = Outbound{Context: ctx, Stop: func() {}}
	b, ok := ctx.Value(bearerKey{}).(bearer)
	if !ok {
		return out, false, nil
	}
	out.ends = []context.Context{ctx}
	if b.claim == nil {
		out.Value = b.signed
		return out, true, nil
	}
	if out.Value, err = b.write(signer, audience); err != nil {
		return out, true, err
	}
	out.ends = []context.Context{b.claim.Context(), ctx}
	out.Context, out.Stop = join.Context(ctx, b.claim.Context())
	return out, true, nil
}

func (b bearer) write(signer *Signer, audience string) (string, error) {
	if signer != nil {
		return signer.Sign(b.claim, b.resource, audience)
	}
	p, err := passOf(b.claim, b.resource)
	return p.String(), err
}

// A Transport is an [http.RoundTripper] that adds the claim's token to each request made
// [Under] a claim. It ends the request, up to the end of the response's body, when the claim
// ends. The zero value is ready. It is safe for concurrent use.
//
// If the claim has ended, the Transport sends nothing: the error is Definite and wraps the
// cause. If the claim or the request's context ends while the request is in flight, the error
// is Uncertain and wraps the cause; see [Outbound.Outcome]. An http.Client with its own Timeout
// hides that: give the context a deadline instead. A request without a claim is sent unchanged.
// After a redirect to another host, or from https to http, the request is sent without the
// token.
type Transport struct {
	Base     http.RoundTripper // nil means http.DefaultTransport
	Signer   *Signer           // nil sends unsigned tokens
	Audience string            // of signed tokens
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
	out, under, err := Outgoing(req.Context(), t.Signer, t.Audience)
	if !under {
		return base.RoundTrip(req)
	}
	if err != nil {
		if req.Body != nil {
			req.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	sent := req.Clone(out.Context)
	sent.Header.Set(Header, out.Value)
	resp, err := base.RoundTrip(sent)
	if err != nil {
		defer out.Stop()
		return nil, out.Outcome(err)
	}
	resp.Body = held(resp.Body, out)
	return resp, nil
}

// strayed reports whether a redirect left the host to which the caller sent its request, or
// changed from https to http.
func strayed(req *http.Request) bool {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	return first.URL.Host != req.URL.Host || first.URL.Scheme != req.URL.Scheme && req.URL.Scheme != "https"
}

// held stops out once body has ended or is closed. If the body is writable, as after a change
// of the protocol, it stays writable, and held closes it when the claim ends: net/http leaves such
// a connection to the caller.
func held(body io.ReadCloser, out Outbound) io.ReadCloser {
	h := &holding{body, out}
	if w, ok := body.(io.Writer); ok {
		if len(out.ends) == 2 { // under a claim
			unhook := context.AfterFunc(out.ends[0], func() { body.Close() })
			h.out.Stop = func() { unhook(); out.Stop() }
		}
		return struct {
			*holding
			io.Writer
		}{h, w}
	}
	return h
}

type holding struct {
	io.ReadCloser
	out Outbound
}

func (h *holding) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	defer h.out.Stop()
	if err == io.EOF {
		return n, err
	}
	return n, h.out.Outcome(err)
}

func (h *holding) Close() error {
	defer h.out.Stop()
	return h.ReadCloser.Close()
}
