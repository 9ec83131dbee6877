package proxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// front starts a proxy of an API, on its own server.
func front(t *testing.T, c *proxy.Caller, upstream string, o *proxy.HandlerOptions) string {
	t.Helper()
	at, err := url.Parse(upstream)
	ok(t, err)
	options := proxy.HandlerOptions{}
	if o != nil {
		options = *o
	}
	options.Transport = transport(t)
	s := httptest.NewServer(proxy.Handler(c, at, func(*http.Request) (string, error) { return "api", nil }, &options))
	t.Cleanup(s.Close)
	return s.URL
}

// request sends a request to a proxy, under the n-th token; 0 means none.
func request(t *testing.T, method, url string, n int, operation, body string, more ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	ok(t, err)
	if n > 0 {
		req.Header.Set(wire.Header, wire.Pass{Token: token(n), Resource: "api", Remaining: bound}.String())
	}
	if operation != "" {
		req.Header.Set(proxy.OperationHeader, operation)
	}
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	resp, err := base.RoundTrip(req)
	ok(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	ok(t, err)
	return resp.StatusCode, resp.Header, string(text)
}

// testTheProxyPassesOnWhatItShould, and nothing else.
func testTheProxyPassesOnWhatItShould(t *testing.T, db *databases.DB) {
	var seen http.Header
	var path string
	api := newAPI(t, func(w http.ResponseWriter, r *http.Request) {
		seen, path = r.Header.Clone(), r.URL.String()
		w.Header().Set("X-Answer", "yes")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	})
	at := front(t, caller(t, db, nil), api.URL+"/v1", nil)
	status, header, text := request(t, http.MethodPost, at+"/payouts?x=1", 1, "payout 7", "pay",
		"X-Custom", "kept", "Connection", "X-Mine, Upgrade", "X-Mine", "1", "Upgrade", "websocket", "Te", "trailers", "Proxy-Authorization", "secret")
	if status != 201 || text != "made" || header.Get("X-Answer") != "yes" || header.Get("X-Hop") != "" || header.Get("Content-Length") != "4" {
		t.Errorf("%d %q %v", status, text, header)
	}
	if fmt.Sprint(api.seen()) != "[pay]" || path != "/v1/payouts?x=1" || seen.Get("X-Custom") != "kept" ||
		seen.Get("Idempotency-Key") != proxy.Key("api", "payout 7") {
		t.Errorf("%v at %s with %v", api.seen(), path, seen)
	}
	for _, name := range []string{wire.Header, "X-Mine", "Upgrade", "Connection", "Proxy-Authorization"} {
		if v := seen.Get(name); v != "" {
			t.Errorf("%s: %s came through", name, v)
		}
	}
	status, _, text = request(t, http.MethodPost, at+"/payouts", 1, `"payout 7"`, "pay")
	if status != 409 || !strings.Contains(text, "call-done") || len(api.seen()) != 1 {
		t.Errorf("again: %d %s, calls %v", status, text, api.seen())
	}
	status, _, text = request(t, http.MethodHead, at, 2, "", "")
	if status != 201 || text != "" || seen.Get("Idempotency-Key") != "" {
		t.Errorf("%d %q", status, text)
	}
	status, _, text = request(t, http.MethodPost, at, 1, "payout 8", "pay")
	if status != 412 || !strings.Contains(text, `"seen":"`+token(2).String()) || len(api.seen()) != 2 {
		t.Errorf("stale: %d %s, calls %v", status, text, api.seen())
	}
}

// TestBadRequestsAreTheCallersFault: none reaches the API.
func TestBadRequestsAreTheCallersFault(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		api := newAPI(t, nil)
		at := front(t, caller(t, prepared(t, open(t)), nil), api.URL, &proxy.HandlerOptions{MaxBody: 10})
		for name, c := range map[string]struct {
			n               int
			operation, body string
			status          int
			more            []string
		}{
			"no token":             {0, "a", "", 428, nil},
			"no operation":         {1, "", "", 400, nil},
			"an empty operation":   {1, `""`, "", 400, nil},
			"a long operation":     {1, strings.Repeat("o", 256), "", 400, nil},
			"an odd operation":     {1, "\xff", "", 400, nil},
			"a body too large":     {1, "a", "12345678901", 413, nil},
			"a token of next week": {0, "a", "", 400, []string{wire.Header, "9223372036854775807;resource=api"}},
			"for another":          {0, "a", "", 403, []string{wire.Header, token(1).String() + ";resource=another"}},
		} {
			if status, _, text := request(t, http.MethodPost, at, c.n, c.operation, c.body, c.more...); status != c.status {
				t.Errorf("%s: %d %s", name, status, text)
			}
		}
		for _, query := range []string{"a=1;b=2", "a=100%"} { // a proxy of httputil would leave it out
			if status, _, text := request(t, http.MethodPost, at+"?"+query, 1, "a", ""); status != 400 {
				t.Errorf("%s: %d %s", query, status, text)
			}
		}
		if len(api.seen()) != 0 {
			t.Errorf("calls %v", api.seen())
		}
	}, databases.Pgx)
}

// TestTheOtherSideFails: the caller gets the possible conclusion.
func TestTheOtherSideFails(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := prepared(t, open(t))
		api := newAPI(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/long":
				_, _ = io.WriteString(w, strings.Repeat("x", 100))
			case "/half":
				w.Header().Set("Content-Length", "10")
				_, _ = io.WriteString(w, "half")
				panic(http.ErrAbortHandler)
			case "/reset":
				panic(http.ErrAbortHandler)
			case "/later":
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		c := caller(t, db, nil)
		at := front(t, c, api.URL, &proxy.HandlerOptions{MaxAnswer: 99})
		down := httptest.NewServer(http.NotFoundHandler())
		down.Close()
		nowhere, unbounded := front(t, c, down.URL, nil), front(t, c, api.URL, &proxy.HandlerOptions{MaxAnswer: math.MaxInt64})
		for _, x := range []struct {
			url, operation string
			status         int
			text           string
		}{
			{nowhere, "a", 503, "busy"}, {at, "a", 200, ""}, // first it was not sent, then it was
			{at + "/long", "b", 200, "longer than 99 bytes"}, {at, "b", 409, "call-done"},
			{at + "/half", "c", 500, "outcome-unknown"}, {at, "c", 409, "call-in-doubt"},
			{at + "/reset", "d", 500, "outcome-unknown"}, {at, "d", 409, "call-in-doubt"},
			{unbounded + "/long", "f", 200, "xxx"},
			{at + "/later", "e", 503, ""}, {at, "e", 409, "call-in-doubt"},
		} {
			if status, _, text := request(t, http.MethodPost, x.url, 1, x.operation, ""); status != x.status || !strings.Contains(text, x.text) {
				t.Errorf("%s %s: %d %s", x.operation, x.url, status, text)
			}
		}
	}, databases.Pgx)
}

// TestAChangeOfTheProtocolIsNoAnswer: it would not end, and no call for the resource could follow.
func TestAChangeOfTheProtocolIsNoAnswer(t *testing.T) {
	api := newAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	})
	at := front(t, looseCaller(), api.URL, nil)
	ok(t, testbed.Later(t, bound, func() error {
		if status, _, text := request(t, http.MethodPost, at, 1, "a", ""); status != 500 || !strings.Contains(text, "outcome-unknown") {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})())
}

// TestNothingIsRepeatedBelow: net/http repeats some requests itself if a connection that was used before ends
// without an answer. A call that changes something is not among them.
func TestNothingIsRepeatedBelow(t *testing.T) {
	for name, c := range map[string]struct {
		operation, method, header string
		sent                      int
	}{
		"with a key":           {"o", http.MethodPost, "Idempotency-Key", 1},
		"by a method to read":  {"o", http.MethodGet, "", 1},
		"that changes nothing": {"", http.MethodGet, "", 2},
	} {
		n := 0
		api := newAPI(t, func(http.ResponseWriter, *http.Request) {
			if n++; n > 1 {
				panic(http.ErrAbortHandler)
			}
		})
		by := proxy.NewTransport(&proxy.TransportOptions{Base: &http.Transport{}, KeyHeader: c.header})
		defer by.CloseIdleConnections()
		loose := looseCaller()
		_, err := loose.Do(t.Context(), grant(1, bound), "api", "first", post(by, api.URL, "x"))
		ok(t, err)
		_, err = loose.Do(t.Context(), grant(1, bound), "api", c.operation, func(ctx context.Context, _ *proxy.Call) (int, error) {
			req, err := http.NewRequestWithContext(ctx, c.method, api.URL, nil)
			ok(t, err)
			resp, err := by.RoundTrip(req)
			if err != nil {
				return 0, err
			}
			resp.Body.Close()
			return resp.StatusCode, nil
		})
		if wantKind(t, err, interlock.Uncertain, nil); len(api.seen()) != 1+c.sent {
			t.Errorf("%s: sent %d times", name, len(api.seen())-1)
		}
	}
}

// TestTransportsKnowWhatWasWritten: only the error of a request without a written byte
// reports that nothing was written.
func TestTransportsKnowWhatWasWritten(t *testing.T) {
	api := newAPI(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	secure := httptest.NewTLSServer(api)
	defer secure.Close()
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	by := proxy.NewTransport(&proxy.TransportOptions{Base: secure.Client().Transport.(*http.Transport), KeyHeader: "X-Key", Quoted: true})
	defer by.CloseIdleConnections()
	var during func()
	loose := looseCaller()
	send := func(t *testing.T, url string, c interlock.Claim, body io.Reader) error {
		_, err := loose.Do(t.Context(), c, "api", "", func(ctx context.Context, _ *proxy.Call) (int, error) {
			during()
			req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, url, body)
			ok(t, err)
			resp, err := by.RoundTrip(req)
			if err != nil {
				return 0, err
			}
			resp.Body.Close()
			return resp.StatusCode, nil
		})
		return err
	}
	during = func() {}
	wantKind(t, send(t, down.URL, grant(1, bound), nil), interlock.Retryable, nil)
	for _, url := range []string{api.URL, secure.URL} {
		n := len(api.seen())
		wantKind(t, send(t, url, grant(1, bound), nil), interlock.Uncertain, nil)
		if len(api.seen()) != n+1 {
			t.Errorf("%s: it was not sent", url)
		}
		c := grant(1, bound)
		during = func() { c.End(interlock.ErrLost) }
		wantKind(t, send(t, url, c, nil), interlock.Definite, interlock.ErrLost)
		during = func() {}
		// A body that is long: the claim ends in the middle of it.
		c = grant(1, bound)
		body := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), ender{c}, strings.NewReader(strings.Repeat("x", 1<<20)))
		wantKind(t, send(t, url, c, body), interlock.Uncertain, interlock.ErrLost)
		if len(api.seen()) != n+1 {
			t.Errorf("%s: half a request was taken for one", url)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL, strings.NewReader("x"))
	ok(t, err)
	_, err = by.RoundTrip(req)
	wantKind(t, err, interlock.Bug, nil)
}

// ender ends a claim when it is read.
type ender struct{ c *claim }

func (e ender) Read([]byte) (int, error) { e.c.End(interlock.ErrLost); return 0, io.EOF }

// TestConnectionsAreUsedAgain by the next call, whose gate is its own; and no
// connection has several calls at once.
func TestConnectionsAreUsedAgain(t *testing.T) {
	var protocol string
	connections := map[string]bool{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		protocol = r.Proto + " " + r.Header.Get("X-Key")
		connections[r.RemoteAddr] = true
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	base := server.Client().Transport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{RootCAs: base.TLSClientConfig.RootCAs, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	by := proxy.NewTransport(&proxy.TransportOptions{Base: base, KeyHeader: "X-Key", Quoted: true})
	defer by.CloseIdleConnections()
	loose := looseCaller()
	for n := range 3 {
		c := grant(n+1, bound)
		_, err := loose.Do(t.Context(), c, "api", "o", post(by, server.URL, "x"))
		ok(t, err)
		c.End(errors.New("over"))
	}
	if want := `HTTP/1.1 "` + proxy.Key("api", "o") + `"`; protocol != want || len(connections) != 1 {
		t.Errorf("%s over %d connections", protocol, len(connections))
	}
}

// TestTheUsersDialerIsUsed, also one without a context.
func TestTheUsersDialerIsUsed(t *testing.T) {
	api := newAPI(t, nil)
	dial := func(network, _ string) (net.Conn, error) { return net.Dial(network, api.Listener.Addr().String()) }
	//lint:ignore SA1019 old programs set them
	base := &http.Transport{Dial: dial, DialTLS: dial}
	by := proxy.NewTransport(&proxy.TransportOptions{Base: base})
	defer by.CloseIdleConnections()
	for _, scheme := range []string{"http", "https"} {
		status, err := looseCaller().Do(t.Context(), grant(1, bound), "api", "o", post(by, scheme+"://127.0.0.1:1", "x"))
		if err != nil || status != http.StatusOK {
			t.Errorf("%s: %d %v", scheme, status, err)
		}
	}
}

// TestConnectionsThatCannotBeShut are not used.
func TestConnectionsThatCannotBeShut(t *testing.T) {
	api := newAPI(t, nil)
	base := &http.Transport{}
	base.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	by := proxy.NewTransport(&proxy.TransportOptions{Base: base})
	defer by.CloseIdleConnections()
	c := grant(1, bound)
	_, err := looseCaller().Do(t.Context(), c, "api", "o", func(ctx context.Context, call *proxy.Call) (int, error) {
		c.End(interlock.ErrLost)
		return post(by, strings.Replace(api.URL, "http:", "https:", 1), "x")(context.WithoutCancel(ctx), call)
	})
	if wantKind(t, err, interlock.Definite, interlock.ErrLost); len(api.seen()) != 0 {
		t.Error("it was sent by a dialer of the user's own")
	}
}

// looseCaller keeps its marks in memory.
func looseCaller() *proxy.Caller {
	return proxy.NewUnrecorded(fence.NewStore(memory.NewSpace().Fence()), nil)
}
