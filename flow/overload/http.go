package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/httpclient"
)

// Headers of requests and responses.
const (
	// HeaderClass is the class of a request, as [Class.String] writes it. See [HeaderClassOf].
	HeaderClass = "Interlock-Criticality"
	// HeaderNoRetry, with the value true, is in responses that no client may retry.
	HeaderNoRetry = "Interlock-No-Retry"
)

// Handler admits requests to next by [Policy.Admit], with the class that of returns, and answers others
// by [Reject]. A nil of means [Critical]. For trusted clients use [HeaderClassOf].
func (p *Policy) Handler(of func(*http.Request) Class, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if of != nil {
			r = r.WithContext(WithClass(r.Context(), of(r)))
		}
		done, err := p.Admit(r.Context())
		if err != nil {
			Reject(w, err)
			return
		}
		defer done()
		next.ServeHTTP(w, r)
	})
}

// HeaderClassOf returns the class in HeaderClass, or [Critical].
func HeaderClassOf(r *http.Request) Class {
	for c := Sheddable; c <= CriticalPlus; c++ {
		if r.Header.Get(HeaderClass) == c.String() {
			return c
		}
	}
	return Critical
}

// Reject answers 503. If err has a [RejectedError], the response says when to retry, or that no client
// may. Pass the error of a [Call], so that only one layer retries.
func Reject(w http.ResponseWriter, err error) {
	if rejected, found := errors.AsType[*RejectedError](err); found {
		if rejected.NoRetry {
			w.Header().Set(HeaderNoRetry, "true")
		} else {
			w.Header().Set("Retry-After", strconv.FormatInt(int64((rejected.RetryAfter+time.Second-1)/time.Second), 10))
		}
	}
	http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
}

// Transport sends requests by next, or http.DefaultTransport if that is nil, by the rules of [Call].
// Responses of 429 and 503 are rejections, other responses of 500 and above are failures.
//
// A request is retried after a rejection, a response of 502 or 504, and an error of the connection.
// Its method must be idempotent (RFC 9110), or it must have an Idempotency-Key, and its body must be
// readable again (GetBody). Such requests are also hedged, unless they upgrade the connection.
//
// The last response is returned, a rejection with [HeaderNoRetry]: pass that on. If the policy itself
// rejects a request, the error has a [RejectedError].
func (p *Policy) Transport(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return transport{p, next}
}

type transport struct {
	p    *Policy
	next http.RoundTripper
}

// RoundTrip sends a request, as Policy.Transport describes.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	e := exchange{p: t.p, next: t.next, request: r, again: isRepeatable(r)}
	resp, err := retry(r.Context(), t.p, e.attempt)
	if resp != nil {
		if interlock.Kind(err) == interlock.Definite && errors.As(err, new(*RejectedError)) {
			resp.Header.Set(HeaderNoRetry, "true") // for a handler that passes it on
		}
		return resp, nil
	}
	if e.last != nil { // its retry was rejected here
		e.last.Body.Close()
	}
	if e.sent.Load() == 0 && r.Body != nil {
		r.Body.Close()
	}
	return nil, err
}

// isRepeatable reports whether a request may be sent again.
func isRepeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// An exchange is a request with all its attempts.
type exchange struct {
	p       *Policy
	next    http.RoundTripper
	request *http.Request
	again   bool // the request may be sent again
	sent    atomic.Int64
	last    *http.Response
}

// attempt sends the request, with hedging if that is allowed.
func (e *exchange) attempt(ctx context.Context) (resp *http.Response, err error) {
	if e.last != nil { // to reuse its connection
		_, _ = io.CopyN(io.Discard, e.last.Body, 64<<10)
		e.last.Body.Close()
	}
	if e.again && e.request.Header.Get("Upgrade") == "" && e.p.Hedges() {
		var cancel func()
		resp, cancel, err = hedge(ctx, e.p, e.send, func(resp *http.Response) {
			if resp != nil {
				resp.Body.Close()
			}
		})
		if resp == nil {
			cancel()
		} else {
			resp.Body = &hedgedBody{resp.Body, cancel}
		}
	} else {
		resp, err = e.send(ctx)
	}
	e.last = resp
	return resp, err
}

// hedgedBody ends the context of its request when it is closed.
type hedgedBody struct {
	io.ReadCloser
	cancel func()
}

// Close closes the body.
func (b *hedgedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// send sends the request once. It returns the response together with the error that decides on a retry.
func (e *exchange) send(ctx context.Context) (*http.Response, error) {
	r := e.request.Clone(ctx)
	if e.sent.Add(1) > 1 && r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		r.Body = body
	}
	if class := ClassOf(ctx); class != Critical {
		r.Header.Set(HeaderClass, class.String())
	}
	resp, err := e.next.RoundTrip(r)
	kind := interlock.Definite
	if e.again {
		kind = interlock.Retryable
	}
	switch {
	case err != nil && e.again && ctx.Err() == nil:
		return nil, &interlock.Error{Op: "send request", Kind: kind, Err: err}
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
		return resp, &RejectedError{Reason: resp.Status, RetryAfter: httpclient.RetryAfter(resp.Header, time.Now()),
			NoRetry: !e.again || resp.Header.Get(HeaderNoRetry) != ""}
	case resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusGatewayTimeout:
		return resp, &interlock.Error{Op: "send request", Kind: kind, Err: errors.New(resp.Status)}
	case resp.StatusCode >= http.StatusInternalServerError:
		return resp, fmt.Errorf("response %s", resp.Status)
	}
	return resp, nil
}
