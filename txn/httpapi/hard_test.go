package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestNothingIsDropped: a step with contradictory fields is refused; none of them is ignored.
func TestNothingIsDropped(t *testing.T) {
	shop, s := open(t)
	for _, step := range []string{
		`{"name":"a","do":"%[1]s","sleep":"1s"}`,
		`{"name":"a","do":"%[1]s","parallel":[{"name":"b","do":"%[1]s","uncompensable":true}]}`,
		`{"name":"a","sleep":"1s","undo":"%[1]s"}`,
		`{"name":"a","sleep":"1s","retry":{"attempts":3}}`,
		`{"parallel":[{"name":"b","do":"%[1]s","uncompensable":true}],"pivot":true}`,
		`{"parallel":[]}`,
		`{"parallel":[{"parallel":[{"name":"b","do":"%[1]s","uncompensable":true}]}]}`,
	} {
		s.do("POST", "/v1/sagas/1", fmt.Sprintf(`{"type":"x","steps":[`+step+`]}`, shop.url), 400)
	}
	s.do("POST", "/v1/sagas/1", `{"type":"x","steps":[]} }`, 400)
	s.do("GET", "/v1/sagas/1", "", 404)
	// Many libraries encode a missing list like this.
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","parallel":[],"uncompensable":true},{"name":"b","do":"%[1]s","parallel":null,"sleep":"0s","pivot":true}]}`, shop.url)
	same(t, "state", s.do("POST", "/v1/sagas/2?wait=1m", body, 200)["state"], "SUCCEEDED")
	has(t, shop.history, "a do", "b do")
}

// TestUndoIsRepeatedAsAsked: the retry of a step sets the attempts of its undo.
func TestUndoIsRepeatedAsAsked(t *testing.T) {
	shop := newShop(t)
	shop.refuse = "b"
	var undos atomic.Int64
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		undos.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(broken.Close)
	s := serve(t, memory.NewJournal(), nil)
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%s","undo":"%s","retry":{"first":"1ms","max":"1ms","undos":3}},
		{"name":"b","do":"%[1]s","pivot":true}]}`, shop.url, broken.URL)
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=1m", body, 200)["state"], "DEAD_LETTER")
	if undos.Load() != 3 {
		t.Errorf("%d undos", undos.Load())
	}
}

// TestHelpIsNoWayRound: an operator can change the input of a step, and not its address; a refused
// request has no effect.
func TestHelpIsNoWayRound(t *testing.T) {
	shop := newShop(t)
	shop.refuse = "b"
	var elsewhere atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(secret.Close)
	at, err := url.Parse(shop.url)
	ok(t, err)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Allow: func(u *url.URL) error {
		if u.Host != at.Host {
			return errors.New("it is not the shop")
		}
		return nil
	}})
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s/gone","input":{"n":1},"retry":{"undos":1}},
		{"name":"b","do":"%[1]s","pivot":true}]}`, shop.url)
	shop.set(func() { shop.broken = "/gone" })
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=1m", body, 200)["state"], "DEAD_LETTER")

	s.do("POST", "/v1/sagas/1/resolve?wait=soon", `{"actor":"me","reason":"fixed"}`, 400)
	same(t, "state", s.do("GET", "/v1/sagas/1", "", 200)["state"], "DEAD_LETTER")
	shop.set(func() { shop.broken = "" })
	input := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"}]}`, secret.URL)
	same(t, "state", s.do("POST", "/v1/sagas/1/retry?wait=1m", `{"actor":"me","reason":"fixed","step":"a","input":`+input+`}`, 200)["state"], "COMPENSATED")
	same(t, "edited", shop.bodies["a undo"], input)
	if elsewhere.Load() > 0 {
		t.Error("an address that is not allowed was called")
	}
}

// TestAllowedWhenCalled: an address that is no longer allowed is not called, also for transactions
// that began before.
func TestAllowedWhenCalled(t *testing.T) {
	shop, store := newShop(t), memory.NewJournal()
	shop.down = true
	s := serve(t, store, nil)
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=50ms", steps(shop), 200)["state"], "RUNNING")
	s.stop()
	shop.set(func() { shop.down = false })
	no := func(*url.URL) error { return errors.New("nothing is") }
	next := serve(t, store, &httpapi.Options{Allow: no, Client: &http.Client{Transport: forbidden{t}}})
	same(t, "state", next.do("GET", "/v1/sagas/1?wait=500ms", "", 200)["state"], "RUNNING")
}

// forbidden is a transport that must not be used.
type forbidden struct{ t *testing.T }

func (f forbidden) RoundTrip(r *http.Request) (*http.Response, error) {
	f.t.Errorf("%s was called", r.URL)
	return nil, errNo
}

// forgetful is a journal that cannot be read after a decision.
type forgetful struct {
	*memory.Journal
	broken atomic.Bool
	from   string // the records that break it
}

func (f *forgetful) Append(ctx context.Context, appends []driver.Append) []error {
	errs := f.Journal.Append(ctx, appends)
	for _, a := range appends {
		for _, r := range a.Records {
			if strings.HasPrefix(r.Kind, f.from) {
				f.broken.Store(true)
			}
		}
	}
	return errs
}

func (f *forgetful) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	if f.broken.Load() {
		return driver.Head{}, nil, &interlock.Error{Op: "read", Kind: interlock.Definite, Err: errors.New("it cannot be read")}
	}
	return f.Journal.Read(ctx, id, after)
}

// TestDecisionIsTold: a decision is returned even if the journal cannot be read afterwards: an error
// would mean that nothing happened, or that the request should be repeated.
func TestDecisionIsTold(t *testing.T) {
	shop := newShop(t)
	for path, c := range map[string]struct{ body, decision string }{
		"/v1/2pc/": {`{"branches":{"north":{"add":-1},"south":{"add":1}}}`, "commit"},
		"/v1/tcc/": {fmt.Sprintf(`{"type":"x","branches":[{"name":"a","url":"%s"}]}`, shop.url), "confirm"},
	} {
		store := &forgetful{Journal: memory.NewJournal(), from: "decide"}
		s := serve(t, store, &httpapi.Options{Participants: map[string]string{"north": shop.url, "south": shop.url}})
		for i, query := range []string{"", "?wait=200ms"} {
			store.broken.Store(false)
			same(t, path, s.do("POST", fmt.Sprint(path, i, query), c.body, 200)["decision"], c.decision)
		}
		store.broken.Store(false)
	}
}

// TestBegunIsNotDenied: a saga that has begun, and cannot be read, is not reported as not begun.
func TestBegunIsNotDenied(t *testing.T) {
	shop := newShop(t)
	store := &forgetful{Journal: memory.NewJournal(), from: "begin"}
	s := serve(t, store, nil)
	for _, id := range []string{"1", "2?wait=50ms"} {
		got := s.do("POST", "/v1/sagas/"+id, steps(shop), http.StatusGatewayTimeout)
		same(t, "kind", got["kind"], "uncertain")
		store.broken.Store(false)
	}
	for _, id := range []string{"1", "2"} {
		same(t, "state", s.do("GET", "/v1/sagas/"+id+"?wait=1m", "", 200)["state"], "SUCCEEDED")
	}
}

// TestSlowClient: a client that does not send the announced body is not waited for.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	j, err := journal.New(memory.NewJournal(), nil)
	ok(t, err)
	defer j.Close()
	c, err := coordinator.New(j, nil)
	ok(t, err)
	w, err := httpapi.New(c, nil)
	ok(t, err)
	httpapi.Patience(w, 100*time.Millisecond)
	server := httptest.NewServer(w)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	ok(t, err)
	defer conn.Close()
	ok(t, conn.SetDeadline(time.Now().Add(testbed.Patience)))
	_, err = io.WriteString(conn, "POST /v1/sagas/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	ok(t, err)
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408") {
		t.Errorf("%q, %v", answer, err)
	}
}

// TestWaitOutlivesThePatience: the bound for the arrival of a request does not bound the wait for its
// answer, and the connection can be used again.
func TestWaitOutlivesThePatience(t *testing.T) {
	shop, s := open(t)
	shop.down = true
	httpapi.Patience(s.web, time.Second)
	for _, c := range []struct{ method, body string }{{"POST", steps(shop)}, {"GET", ""}, {"POST", steps(shop)}} {
		began := time.Now()
		same(t, "state", s.do(c.method, "/v1/sagas/1?wait=1200ms", c.body, 200)["state"], "RUNNING")
		if waited := time.Since(began); waited < 1200*time.Millisecond {
			t.Errorf("answered after %v", waited)
		}
	}
}

// TestForeignPage: a page of another origin, in a browser that can reach the service, starts nothing.
func TestForeignPage(t *testing.T) {
	shop, s := open(t)
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/sagas/1", strings.NewReader(steps(shop)))
	ok(t, err)
	r.Header.Set("Content-Type", "text/plain")
	r.Header.Set("Origin", "https://elsewhere.example")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	defer http.DefaultClient.CloseIdleConnections()
	answer, err := http.DefaultClient.Do(r)
	ok(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusForbidden || !strings.HasPrefix(string(text), `{"error":"`) {
		t.Errorf("%s %s, %v", answer.Status, text, err)
	}
	s.do("GET", "/v1/sagas/1", "", 404)
}

// TestClosed: a service that stops refuses transactions for now, so that their clients repeat the requests.
func TestClosed(t *testing.T) {
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url}})
	s.web.Close(t.Context())
	for path, body := range map[string]string{
		"tcc":   fmt.Sprintf(`{"type":"x","branches":[{"name":"a","url":%q}]}`, shop.url),
		"sagas": fmt.Sprintf(`{"steps":[{"name":"a","do":%q,"pivot":true}]}`, shop.url),
		"2pc":   `{"branches":{"north":1}}`,
	} {
		same(t, "kind of "+path, s.do("POST", "/v1/"+path+"/1", body, 503)["kind"], "retryable")
	}
}
