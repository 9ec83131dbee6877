package route

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/own"
)

// Router forwards every request to the owner of its key. It owns nothing itself.
//
// A request that its member refused, or to which no connection could be made, was
// not carried out, and is tried again where the key is by then, Options.Attempts
// times. One whose answer was lost is not: it is answered with 502, and may have
// been carried out. A key that has no owner for Options.Wait is answered with 503.
func Router(m *own.Map, key Key, o *Options) http.Handler {
	options := o.resolve()
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetXForwarded() },
		Transport:    forwarder{m, options},
		ErrorHandler: failed,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if err == nil {
			r, err = replayable(r, options.MaxBody)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routedKey{}, k)))
	})
}

type routedKey struct{}

// body is what has been read of a request's body; whole if that is all of it.
type body struct {
	read  []byte
	whole bool
}

type bodyKey struct{}

// replayable keeps up to limit bytes of the body.
func replayable(r *http.Request, limit int64) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r.WithContext(context.WithValue(r.Context(), bodyKey{}, body{whole: true})), nil
	}
	read, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	rest := r.Body
	b := body{read, int64(len(read)) <= limit}
	r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), rest}
	return r, nil
}

// forwarder is the transport of the proxy.
type forwarder struct {
	m *own.Map
	o Options
}

var (
	errNoOwner  = errors.New("nobody owns the key")
	errGaveUp   = errors.New("every member that was asked refused")
	errNoWhere  = errors.New("the owner told no address")
	errSentOnce = errors.New("the member refused, and the body is too long to be sent again")
)

// RoundTrip tries where the key is, until a member takes it.
func (f forwarder) RoundTrip(r *http.Request) (*http.Response, error) {
	k := r.Context().Value(routedKey{}).(string)
	kept := r.Context().Value(bodyKey{}).(body)
	var tried interlock.Token
	for attempt := 1; ; attempt++ {
		at, err := f.find(r.Context(), k, tried)
		if err != nil {
			return nil, err
		}
		resp, err := f.o.Transport.RoundTrip(f.to(r, at, kept))
		switch {
		case err == nil && !refused(resp):
			return resp, nil
		case err != nil && !unsent(err):
			return nil, err
		}
		if err == nil {
			_ = resp.Body.Close() // a refusal, read or not
		}
		if attempt >= f.o.Attempts {
			return nil, errors.Join(errGaveUp, err)
		}
		if !kept.whole {
			return nil, errors.Join(errSentOnce, err)
		}
		tried = at.Epoch
	}
}

// find waits for an owner under a later epoch than the one that was tried.
func (f forwarder) find(ctx context.Context, k string, tried interlock.Token) (own.Location, error) {
	ctx, cancel := context.WithTimeout(ctx, f.o.Wait)
	defer cancel()
	at, err := f.m.Await(ctx, k, tried)
	switch {
	case err != nil:
		return at, fmt.Errorf("%w: %w", errNoOwner, err)
	case at.Address == "":
		return at, fmt.Errorf("%w: %s", errNoWhere, at.Identity)
	}
	return at, nil
}

// to is r addressed to a member.
func (f forwarder) to(r *http.Request, at own.Location, kept body) *http.Request {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = f.o.Scheme, at.Address
	out.Header.Set(EpochHeader, at.Epoch.String())
	if kept.whole {
		out.Body = io.NopCloser(bytes.NewReader(kept.read))
		if len(kept.read) == 0 {
			out.Body = http.NoBody
		}
	}
	return out
}

// refused tells a member's refusal from a 421 of the application's own.
func refused(resp *http.Response) bool {
	return resp.StatusCode == http.StatusMisdirectedRequest && resp.Header.Get(EpochHeader) != ""
}

// unsent: no connection was made, so nothing was carried out.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func failed(w http.ResponseWriter, _ *http.Request, err error) {
	code := http.StatusBadGateway
	for _, e := range []error{errNoOwner, errGaveUp, errNoWhere, errSentOnce} {
		if errors.Is(err, e) {
			code = http.StatusServiceUnavailable
		}
	}
	http.Error(w, "route: "+err.Error(), code)
}
