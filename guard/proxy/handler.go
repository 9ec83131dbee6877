package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/wire"
)

// Defaults of [HandlerOptions], in bytes.
const (
	DefaultMaxBody   = 1 << 20
	DefaultMaxAnswer = 4 << 20
)

// OperationHeader is the header in which a caller names its operation; see [Operation].
const OperationHeader = "Idempotency-Key"

// HandlerOptions configure [Handler]; nil and the zero value are valid.
type HandlerOptions struct {
	// Wire defines which tokens are accepted; nil trusts all callers.
	Wire *wire.Options
	// Transport sends the calls; nil means NewTransport(nil).
	Transport *Transport
	// MaxBody is the maximum size of a request body, in bytes; 0 means [DefaultMaxBody]. A
	// larger one is answered with 413.
	MaxBody int64
	// MaxAnswer is the maximum size of an answer body, in bytes; 0 means [DefaultMaxAnswer]. Of
	// a larger answer the caller receives only the status.
	MaxAnswer int64
	// Operation returns the operation of a request, or an empty name if the request changes
	// nothing. Its error is answered with 400. Nil means [Operation].
	Operation func(*http.Request) (string, error)
}

func (o *HandlerOptions) resolve() HandlerOptions {
	r := *cmp.Or(o, &HandlerOptions{})
	r.MaxBody = cmp.Or(r.MaxBody, DefaultMaxBody)
	r.MaxAnswer = cmp.Or(r.MaxAnswer, DefaultMaxAnswer)
	if r.Transport == nil {
		r.Transport = NewTransport(nil)
	}
	if r.Operation == nil {
		r.Operation = Operation
	}
	return r
}

// Operation returns the [OperationHeader] of a request, quoted or bare. The header may be
// absent if the method is safe: GET, HEAD or OPTIONS.
func Operation(r *http.Request) (string, error) {
	values := r.Header.Values(OperationHeader)
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	switch {
	case len(values) == 0 && safe:
		return "", nil
	case len(values) != 1:
		return "", fmt.Errorf("a request that changes something needs one header %s", OperationHeader)
	}
	name := values[0]
	if len(name) >= 2 && strings.HasPrefix(name, `"`) && strings.HasSuffix(name, `"`) {
		name = name[1 : len(name)-1]
	}
	if name == "" || len(name) > MaxOperation {
		return "", fmt.Errorf("%s has 1 to %d bytes", OperationHeader, MaxOperation)
	}
	return name, nil
}

// Handler forwards requests to upstream as calls of c, each under the token that it carries,
// for its resource; see [wire.Handler]. It removes hop-by-hop headers, the token, the operation
// header and requests to change the protocol. It reads the request body before the call takes
// its turn, and the complete answer before it responds. So a slow caller blocks no other call.
//
// The caller receives the answer of upstream after it is recorded. If the call was not made, or
// that is unknown, it receives a problem as in package guard/wire. A call that was made before
// is answered with 409.
func Handler(c *Caller, upstream *url.URL, resource wire.Resource, o *HandlerOptions) http.Handler {
	h := &handler{caller: c, upstream: upstream, options: o.resolve()}
	return wire.Handler(resource, h, h.options.Wire)
}

type handler struct {
	caller   *Caller
	upstream *url.URL
	options  HandlerOptions
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, _ := wire.From(r.Context())
	operation, err := h.options.Operation(r)
	if err == nil {
		_, err = url.ParseQuery(r.URL.RawQuery) // httputil removes what it cannot parse
	}
	if err != nil {
		wire.Refuse(w, &wire.Refusal{Reason: wire.Malformed, Resource: p.Name(), Detail: err.Error()})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.options.MaxBody))
	if err != nil {
		code := http.StatusBadRequest
		if _, found := errors.AsType[*http.MaxBytesError](err); found {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "the body cannot be passed on", code)
		return
	}
	var a *answer
	_, err = h.caller.Do(r.Context(), p, p.Name(), operation, func(ctx context.Context, _ *Call) (status int, err error) {
		a, err = h.send(ctx, r, body)
		return a.status, err
	})
	if err != nil {
		refuse(w, err)
		return
	}
	a.respond(w)
}

// send forwards r with body, and reads the answer.
func (h *handler) send(ctx context.Context, r *http.Request, body []byte) (a *answer, err error) {
	a = &answer{header: http.Header{}}
	out := r.Clone(ctx)
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	for _, name := range []string{wire.Header, OperationHeader, "Upgrade"} {
		out.Header.Del(name)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(p *httputil.ProxyRequest) { p.SetURL(h.upstream) },
		Transport:      h.options.Transport,
		ModifyResponse: func(resp *http.Response) error { return whole(resp, h.options.MaxAnswer) },
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, failed error) { err = failed },
	}
	proxy.ServeHTTP(a, out)
	return a, err
}

// whole reads the complete answer, so that an incomplete one is not sent. The call was made in
// either case.
func whole(resp *http.Response, most int64) error {
	if resp.StatusCode == http.StatusSwitchingProtocols { // what follows does not end
		return &interlock.Error{Op: "read answer", Kind: interlock.Uncertain, Err: errors.New("it changes the protocol, which was not requested")}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, max(most, most+1)))
	resp.Body.Close()
	if err != nil {
		return &interlock.Error{Op: "read answer", Kind: interlock.Uncertain, Err: err}
	}
	if int64(len(body)) > most {
		body = fmt.Appendf(nil, "the answer is longer than %d bytes, and is not passed on\n", most)
		resp.Header = http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	}
	if resp.Request.Method != http.MethodHead {
		resp.ContentLength = int64(len(body))
		resp.Header.Del("Content-Length")
	}
	resp.Body, resp.Trailer = io.NopCloser(bytes.NewReader(body)), nil
	return nil
}

// An answer is buffered until it may be sent.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header returns the headers of the answer.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader stores the status, except informational ones.
func (a *answer) WriteHeader(status int) {
	if status >= 200 && a.status == 0 {
		a.status = status
	}
}

// Write appends to the body.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

func (a *answer) respond(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may be gone
}

// refuse sends the reason why there is no answer.
func refuse(w http.ResponseWriter, err error) {
	var done *DoneError
	var doubt *InDoubtError
	switch {
	case errors.As(err, &done):
		err = &wire.Refusal{Reason: wire.Done, Resource: done.Resource, Detail: fmt.Sprintf("the answer had the status %d", done.Status)}
	case errors.As(err, &doubt):
		err = &wire.Refusal{Reason: wire.InDoubt, Resource: doubt.Resource}
	case errors.Is(err, interlock.ErrName):
		err = &wire.Refusal{Reason: wire.Malformed, Detail: "the name of the operation or the resource is invalid"}
	}
	if !wire.Refuse(w, err) {
		http.Error(w, "the call was not made", http.StatusInternalServerError)
	}
}
