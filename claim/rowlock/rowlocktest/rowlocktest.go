// Package rowlocktest fails a test that makes a remote call while rows are locked: all others that
// need the rows then wait for the network too. It finds only calls through its wrappers.
//
//	client := &http.Client{Transport: rowlocktest.Transport(t, http.DefaultTransport)}
//
// A call is inside if its context descends from that of a scope of rowlock.Tx: [Check] finds only
// those. [Strict], which [Transport] and [Dial] use, also finds calls without the scope's context,
// in tests that do one thing at a time.
package rowlocktest

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/interlock-dev/interlock/claim/rowlock"
)

// Check fails tb if ctx descends from a scope in which rows are locked. what
// names the call for the message. It is for clients that [Transport] and [Dial]
// do not fit; call it where the call is made.
func Check(tb testing.TB, ctx context.Context, what string) {
	tb.Helper()
	if table, ok := rowlock.Held(ctx); ok {
		tb.Errorf("%s is called while rows of %s are locked", what, table)
	}
}

// Strict is [Check], and also fails if any scope is open in this process,
// whatever ctx is. It is for tests that do one thing at a time.
func Strict(tb testing.TB, ctx context.Context, what string) {
	tb.Helper()
	if _, ok := rowlock.Held(ctx); !ok && rowlock.Open() > 0 {
		tb.Errorf("%s is called, without the scope's context, while rows are locked", what)
	}
	Check(tb, ctx, what)
}

// Transport sends requests by next, and fails tb for each one while rows are locked.
func Transport(tb testing.TB, next http.RoundTripper) http.RoundTripper {
	return transport{tb, next}
}

type transport struct {
	tb   testing.TB
	next http.RoundTripper
}

// RoundTrip checks, and sends the request in any case.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.tb.Helper()
	Strict(t.tb, r.Context(), r.Method+" "+r.URL.Redacted())
	return t.next.RoundTrip(r)
}

// Dial connects by next, and fails tb for each connection while rows are locked. It is for clients
// of databases and queues that take a dialer.
func Dial(tb testing.TB, next func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		tb.Helper()
		Strict(tb, ctx, "connecting to "+address)
		return next(ctx, network, address)
	}
}
