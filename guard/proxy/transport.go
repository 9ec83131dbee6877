package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// TransportOptions configure [NewTransport]; nil and the zero value are valid.
type TransportOptions struct {
	// Base is cloned for its settings; nil means http.DefaultTransport.
	Base *http.Transport
	// KeyHeader is the header of the API's idempotency key, such as "Idempotency-Key"; empty
	// means that the API takes none.
	KeyHeader string
	// Quoted writes the key in quotes, as in the IETF draft. Many APIs require it without
	// quotes.
	Quoted bool
}

// A Transport is an [http.RoundTripper] for requests that are made in a [Send], with its
// context. It refuses other requests. It calls [Call.Ready] before each write to the
// connection. So a process that was paused before that sends nothing when it continues. It uses
// HTTP/1.1, in which a connection serves one call at a time. It is safe for concurrent use.
//
// If nothing of a request was written, the error is Retryable or that of Ready. Otherwise it is
// Uncertain.
type Transport struct {
	base    *http.Transport
	options TransportOptions
}

// NewTransport returns a Transport with its own connections; close them by
// [Transport.CloseIdleConnections].
func NewTransport(o *TransportOptions) *Transport {
	options := *cmp.Or(o, &TransportOptions{})
	base := options.Base
	if base == nil {
		base, _ = http.DefaultTransport.(*http.Transport)
	}
	if base == nil { // the program has replaced it
		base = &http.Transport{}
	}
	return &Transport{base: gated(base.Clone()), options: options}
}

// gated makes t dial connections with a gate.
func gated(t *http.Transport) *http.Transport {
	//lint:ignore SA1019 net/http uses Dial and DialTLS too
	dial, dialTLS := either(t.DialContext, t.Dial), either(t.DialTLSContext, t.DialTLS)
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	t.DialContext = closeable(dial)
	if dialTLS != nil {
		t.DialTLSContext = closeable(dialTLS)
	}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.ForceAttemptHTTP2, t.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = nil // it is a clone
	}
	return t
}

// CloseIdleConnections closes connections that are not in use.
func (t *Transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// RoundTrip sends one request; see [Transport].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	call, ok := callOf(req.Context())
	if !ok {
		if req.Body != nil {
			req.Body.Close() // as a RoundTripper must
		}
		return nil, failure.Bug("send request", req.URL.Host, "use it in a Send, with the context of the call")
	}
	g := &gate{call: call}
	req = req.Clone(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { g.guard(got.Conn) },
	}))
	if t.options.KeyHeader != "" && call.Key != "" {
		req.Header.Set(t.options.KeyHeader, t.key(call))
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, g.failed(err)
	}
	return resp, nil
}

func (t *Transport) key(c *Call) string {
	if t.options.Quoted {
		return `"` + c.Key + `"`
	}
	return c.Key
}

// A gate checks the writes of a connection while it serves a request.
type gate struct {
	call    *Call
	refused atomic.Pointer[error] // why a write was refused
	used    atomic.Pointer[conn]  // a part of the request was written to it
}

// guard installs the gate in the connection that serves its request. It closes a connection in
// which it cannot install the gate.
func (g *gate) guard(c net.Conn) {
	for {
		switch at := c.(type) {
		case *conn:
			at.gate.Store(g)
			return
		case interface{ NetConn() net.Conn }: // that of TLS
			c = at.NetConn()
		default:
			c.Close()
			return
		}
	}
}

// failed returns the error to report for err.
func (g *gate) failed(err error) error {
	why := g.refused.Load()
	if why != nil {
		err = *why
	}
	switch {
	case g.call.sent(false): // some of it may have been written
		return &interlock.Error{Op: "send request", Kind: interlock.Uncertain, Err: err}
	case why != nil:
		return err
	}
	return notSent("send request", err)
}

// conn is a connection with a gate.
type conn struct {
	net.Conn
	gate atomic.Pointer[gate]
}

// Write calls Ready, and then writes at once.
func (c *conn) Write(p []byte) (int, error) {
	g := c.gate.Load()
	if g == nil {
		return c.Conn.Write(p)
	}
	if err := g.ready(c); err != nil {
		g.refused.CompareAndSwap(nil, &err)
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if n > 0 {
		g.used.Store(c)
	}
	return n, err
}

// ready returns an error if nothing may be written to c. If a connection that was used before ends without
// an answer, net/http repeats some requests: those that only read by their method, or have an Idempotency-Key.
func (g *gate) ready(c *conn) error {
	if used := g.used.Load(); used != nil && used != c && g.call.Operation != "" {
		return &interlock.Error{Op: "make call", Name: g.call.Resource, Kind: interlock.Uncertain, Err: errNoAnswer}
	}
	return g.call.Ready()
}

var errNoAnswer = errors.New("the connection ended without an answer, and the call is not repeated")

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// either returns dial, or else plain, which may be nil too.
func either(dial dialer, plain func(network, addr string) (net.Conn, error)) dialer {
	if dial != nil || plain == nil {
		return dial
	}
	return func(_ context.Context, network, addr string) (net.Conn, error) { return plain(network, addr) }
}

func closeable(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c}, nil
	}
}
