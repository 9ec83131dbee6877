package route

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// Router returns a handler that forwards every request to the owner of its key. It owns nothing
// itself.
//
// If a member refused a request, or no connection could be made, the request was not executed.
// Router then retries at the current owner of the key. That may be the same member, which has
// the partition and is about to accept callers. If the reply was lost, Router answers 502 and
// the request may have been executed. Router does not retry it, though an http.Transport
// retries methods that are idempotent. If no member accepts a request within Options.Wait,
// Router answers 503.
func Router(m *partition.Map, key Key, o *Options) http.Handler {
	options := o.resolve()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetXForwarded()
			r.Out.URL.RawQuery = r.In.URL.RawQuery // httputil removes what it cannot parse
		},
		Transport:    forwarder{m, options},
		ErrorHandler: options.failed,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if err == nil {
			r, err = replayable(r, options.MaxBody)
		}
		if err != nil {
			http.Error(w, err.Error(), codeOf(err))
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routedKey{}, k)))
	})
}

type routedKey struct{}

// body is the part of a request's body that has been read; whole means all of it.
type body struct {
	read  []byte
	whole bool
}

type bodyKey struct{}

// replayable buffers up to limit bytes of the body.
func replayable(r *http.Request, limit int64) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r.WithContext(context.WithValue(r.Context(), bodyKey{}, body{whole: true})), nil
	}
	read, err := io.ReadAll(io.LimitReader(r.Body, max(limit, limit+1)))
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
	m *partition.Map
	o Options
}

// codeOf returns the status code for a request that cannot be read.
func codeOf(err error) int {
	if _, found := errors.AsType[*http.MaxBytesError](err); found {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

var (
	errNoOwner  = errors.New("no owner accepted the request in time")
	errGaveUp   = errors.New("every tried owner refused")
	errNoWhere  = errors.New("the owner reported no address")
	errSentOnce = errors.New("the owner refused, and the body is too long to be sent again")
)

// again is the delay before the same owner is asked again after a refusal.
var again = backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}

// RoundTrip sends the request to the owner of the key, until a member accepts it.
func (f forwarder) RoundTrip(r *http.Request) (*http.Response, error) {
	k := r.Context().Value(routedKey{}).(string)
	kept := r.Context().Value(bodyKey{}).(body)
	waiting, cancel := context.WithTimeout(r.Context(), f.o.Wait)
	defer cancel()
	var tried interlock.Token
	var why error // the last one did not take it
	for owners, refusals := 0, 0; ; refusals++ {
		at, err := f.find(waiting, k, tried, refusals)
		if err != nil {
			return nil, errors.Join(err, why)
		}
		if at.Epoch != tried {
			tried, refusals = at.Epoch, 0
			owners++
		}
		if owners > f.o.Attempts {
			return nil, errors.Join(errGaveUp, why)
		}
		resp, err := f.o.Transport.RoundTrip(f.to(r, at, kept))
		switch {
		case err == nil && !refused(resp):
			return resp, nil
		case err != nil && !driver.NeverSent(err):
			return nil, err
		case err == nil:
			discard(resp)
		}
		if why = err; !kept.whole {
			return nil, errors.Join(errSentOnce, err)
		}
	}
}

// find waits for an owner under a later epoch than the tried one, and returns the tried one
// again after a while.
func (f forwarder) find(ctx context.Context, k string, tried interlock.Token, refusals int) (partition.Location, error) {
	if tried > 0 {
		soon, cancel := context.WithTimeout(ctx, again.Delay(refusals, rand.Float64()))
		_, err := f.m.Await(soon, k, tried)
		cancel()
		if err != nil {
			tried--
		}
		if ctx.Err() != nil {
			return partition.Location{}, fmt.Errorf("%w: %w", errNoOwner, context.Cause(ctx))
		}
	}
	at, err := f.m.Await(ctx, k, tried)
	switch {
	case err != nil:
		return at, fmt.Errorf("%w: %w", errNoOwner, err)
	case at.Address == "":
		return at, fmt.Errorf("%w: %s", errNoWhere, at.Identity)
	}
	return at, nil
}

// discard reads a refusal, which is short, so that its connection can be reused.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}

// to returns r addressed to a member.
func (f forwarder) to(r *http.Request, at partition.Location, kept body) *http.Request {
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

// refused distinguishes a member's refusal from a 421 of the application.
func refused(resp *http.Response) bool {
	return resp.StatusCode == http.StatusMisdirectedRequest && resp.Header.Get(EpochHeader) != ""
}

// failed answers a request that reached no owner, without internal details.
func (o Options) failed(w http.ResponseWriter, r *http.Request, err error) {
	if o.Failed != nil {
		o.Failed(r, err)
	}
	for _, e := range []error{errNoOwner, errGaveUp, errNoWhere, errSentOnce} {
		if errors.Is(err, e) {
			http.Error(w, "route: "+e.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	http.Error(w, "route: the owner did not answer, and may have carried out the request", http.StatusBadGateway)
}
