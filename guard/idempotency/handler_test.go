package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// site is a server whose handler has the guard.
type site struct {
	*httptest.Server
	runs atomic.Int64
}

func tenant(r *http.Request) string { return r.Header.Get("Tenant") }

func serve(t testing.TB, records driver.Idempotency, o *idempotency.HandlerOptions, next http.HandlerFunc) *site {
	t.Helper()
	s := &site{}
	store := open(t, records, nil)
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", idempotency.Handler(store, tenant, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		next(w, r)
	}), o))
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// said is a response as the client receives it.
type said struct {
	Status          int
	Header, Trailer http.Header
	Body            string
	reason          string
}

// ask sends a request; changes are "Header: value", "body=…", "path=…", "method=…".
func (s *site) ask(t testing.TB, key string, changes ...string) said {
	t.Helper()
	method, path, body := "POST", "/orders/7", `{"n":1}`
	header := http.Header{"Content-Type": {"application/json"}, "Tenant": {"alice"}}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	for _, c := range changes {
		if name, value, ok := strings.Cut(c, "="); ok {
			*map[string]*string{"body": &body, "path": &path, "method": &method}[name] = value
		} else {
			name, value, _ := strings.Cut(c, ": ")
			if name == "Tenant" {
				header.Del(name)
			}
			header.Add(name, value)
		}
	}
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	ok(t, err)
	r.Header = header
	got, err := s.Client().Do(r)
	ok(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	ok(t, err)
	answer := said{Status: got.StatusCode, Header: got.Header, Trailer: got.Trailer, Body: string(text)}
	if got.Header.Get("Content-Type") == "application/problem+json" {
		var p struct {
			Type, Title, Reason string
			Status              int
		}
		if err := json.Unmarshal(text, &p); err != nil || p.Status != answer.Status || p.Title == "" || p.Type == "" {
			t.Errorf("problem %s: %v", text, err)
		}
		answer.reason = p.Reason
	}
	return answer
}

func (s *site) want(t testing.TB, got said, status int, reason string) {
	t.Helper()
	if got.Status != status || got.reason != reason {
		t.Errorf("%d %q: %s; want %d %q", got.Status, got.reason, got.Body, status, reason)
	}
}

func create(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/"+r.PathValue("id"))
	w.Header().Add("Link", "<a>")
	w.Header().Add("Link", "<\xe9>")
	w.Header().Set("Set-Cookie", "session=secret")
	w.WriteHeader(http.StatusCreated)
	w.Header().Set("Etag", "too late")
	fmt.Fprintf(w, "made of %s\x00\xff", body)
}

func TestAnswerIsReplayed(t *testing.T) {
	s := serve(t, memory.NewIdempotency(), nil, create)
	first := s.ask(t, "k")
	s.want(t, first, 201, "")
	if first.Header.Get("Set-Cookie") == "" || first.Header.Get("Idempotency-Replayed") != "" || first.Header.Get("Etag") != "" {
		t.Errorf("first answer: %v", first.Header)
	}
	again := s.ask(t, `"k"`)
	if again.Header.Get("Idempotency-Replayed") != "true" || again.Header.Get("Set-Cookie") != "" {
		t.Errorf("replay: %v", again.Header)
	}
	for _, name := range []string{"Idempotency-Replayed", "Set-Cookie", "Date"} {
		first.Header.Del(name)
		again.Header.Del(name)
	}
	if !reflect.DeepEqual(first, again) || s.runs.Load() != 1 {
		t.Errorf("run %d times: %+v, then %+v", s.runs.Load(), first, again)
	}
}

// TestOtherRequestUnderAKey: each part of the fingerprint makes it another request, and
// each part of the key another key.
func TestOtherRequestUnderAKey(t *testing.T) {
	s := serve(t, memory.NewIdempotency(), &idempotency.HandlerOptions{Headers: []string{"Currency"}}, create)
	s.want(t, s.ask(t, "k"), 201, "")
	for _, c := range []string{"body={}", "body=", "path=/orders/8", "path=/orders/7?x", "Currency: EUR"} {
		s.want(t, s.ask(t, "k", c), 422, "mismatch")
	}
	if s.runs.Load() != 1 {
		t.Fatalf("run %d times", s.runs.Load())
	}
	s.want(t, s.ask(t, "k", "Unrelated: x"), 201, "")
	for _, c := range []string{"method=PATCH", "Tenant: bob"} {
		got := s.ask(t, "k", c)
		if s.want(t, got, 201, ""); got.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s has the answer of another request", c)
		}
	}
	if s.runs.Load() != 3 {
		t.Errorf("run %d times", s.runs.Load())
	}
}

// TestHostOfTheFingerprint: net/http does not keep it with the other headers.
func TestHostOfTheFingerprint(t *testing.T) {
	h := idempotency.Handler(open(t, memory.NewIdempotency(), nil), idempotency.SharedScope, http.HandlerFunc(create),
		&idempotency.HandlerOptions{Headers: []string{"host"}})
	for _, c := range []struct {
		host   string
		status int
	}{{"a.example", 201}, {"b.example", 422}, {"a.example", 201}} {
		r, w := httptest.NewRequestWithContext(t.Context(), "POST", "http://"+c.host+"/orders", strings.NewReader("x")), httptest.NewRecorder()
		r.Header.Set("Idempotency-Key", "k")
		if h.ServeHTTP(w, r); w.Code != c.status {
			t.Errorf("%s: %d %s", c.host, w.Code, w.Body)
		}
	}
}

func TestKeyIsRequired(t *testing.T) {
	s := serve(t, memory.NewIdempotency(), &idempotency.HandlerOptions{MaxRequest: 10, Docs: "https://example.org/keys"}, create)
	missing := s.ask(t, "")
	s.want(t, missing, 400, "key-missing")
	if !strings.Contains(missing.Body, `"type":"https://example.org/keys#key-missing"`) {
		t.Error(missing.Body)
	}
	s.want(t, s.ask(t, `"k`), 400, "key-malformed")
	s.want(t, s.ask(t, "a", "Idempotency-Key: b"), 400, "key-malformed")
	s.want(t, s.ask(t, "k", "body=12345678901"), 413, "request-too-large")
	if s.runs.Load() != 0 {
		t.Error("something was run")
	}
	s.want(t, s.ask(t, "k", "body=1234567890"), 201, "")
	s.want(t, s.ask(t, "", "method=GET"), 201, "")
	optional := serve(t, memory.NewIdempotency(), &idempotency.HandlerOptions{Optional: true}, create)
	for range 2 {
		optional.want(t, optional.ask(t, ""), 201, "")
	}
	if s.runs.Load() != 2 || optional.runs.Load() != 2 {
		t.Errorf("run %d and %d times", s.runs.Load(), optional.runs.Load())
	}
}

// TestWhatIsKept: an answer that depends on more than the request is not replayed.
func TestWhatIsKept(t *testing.T) {
	for status, kept := range map[int]bool{200: true, 204: true, 303: true, 400: true, 402: true, 404: true, 410: true, 422: true,
		401: false, 403: false, 409: false, 412: false, 408: false, 425: false, 428: false, 429: false, 499: false, 500: false, 502: false, 503: false} {
		s := serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) })
		for range 2 {
			s.want(t, s.ask(t, "k"), status, "")
		}
		if (s.runs.Load() == 1) != kept {
			t.Errorf("%d was run %d times", status, s.runs.Load())
		}
		// An answer that is not kept and below 500 frees the key, also for another request.
		want := 422
		if !kept && status < 500 {
			want = status
		}
		if got := s.ask(t, "k", "body={}"); got.Status != want {
			t.Errorf("another request after %d: %d", status, got.Status)
		}
	}
	frozen := serve(t, memory.NewIdempotency(), &idempotency.HandlerOptions{Keep: func(int) bool { return true }},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	for range 2 {
		frozen.want(t, frozen.ask(t, "k"), 500, "")
	}
	if frozen.runs.Load() != 1 {
		t.Errorf("a frozen 500 was run %d times", frozen.runs.Load())
	}
	declined := serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, r *http.Request) {
		idempotency.From(r.Context()).Decline()
		w.WriteHeader(422)
	})
	for i := range 3 {
		declined.want(t, declined.ask(t, "k", fmt.Sprint("body=", i)), 422, "")
	}
	if declined.runs.Load() != 3 {
		t.Errorf("the declined request ran %d times", declined.runs.Load())
	}
}

// TestARefusedTokenIsNoAnswer: the token is not a part of the request, and a retry can have another one.
func TestARefusedTokenIsNoAnswer(t *testing.T) {
	guarded := wire.Handler(func(*http.Request) (string, error) { return "r", nil },
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), nil)
	for name, keep := range map[string]func(int) bool{"default": nil, "all": func(int) bool { return true }} {
		h := idempotency.Handler(open(t, memory.NewIdempotency(), nil), idempotency.SharedScope, guarded, &idempotency.HandlerOptions{Keep: keep})
		late, good := interlock.Token(interlock.CounterAt(time.Now().Add(time.Hour))<<12), interlock.Token(interlock.CounterAt(time.Now())<<12)
		for _, x := range []struct {
			token string
			want  int
		}{
			{"", http.StatusPreconditionRequired},
			{"nonsense", http.StatusBadRequest},
			{wire.Pass{Token: late, Resource: "r"}.String(), http.StatusBadRequest},
			{wire.Pass{Token: good, Resource: "r"}.String(), http.StatusNoContent},
			{"", http.StatusNoContent}, // replayed
		} {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Idempotency-Key", "k")
			if x.token != "" {
				r.Header.Set(wire.Header, x.token)
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != x.want {
				t.Errorf("%s: token %q: %d %s, want %d", name, x.token, w.Code, w.Body, x.want)
			}
		}
	}
}

// TestSilenceIsNoAnswer after the context of a handler has ended: a retry is executed. Otherwise it is a 200.
func TestSilenceIsNoAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		ends         bool
		next         http.HandlerFunc
		status, runs int
	}{
		"silent":                    {true, func(http.ResponseWriter, *http.Request) {}, 503, 2},
		"an answer after the end":   {true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 204, 1},
		"declined":                  {true, func(_ http.ResponseWriter, r *http.Request) { idempotency.From(r.Context()).Decline() }, 200, 2},
		"silent, but not at an end": {false, func(http.ResponseWriter, *http.Request) {}, 200, 1},
	} {
		runs, end := 0, func() {}
		h := idempotency.Handler(open(t, memory.NewIdempotency(), nil), idempotency.SharedScope, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			if c.ends {
				end()
			}
			c.next(w, r)
		}), nil)
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			end = cancel
			r, w := httptest.NewRequestWithContext(ctx, "POST", "/orders", nil), httptest.NewRecorder()
			r.Header.Set("Idempotency-Key", "k")
			if h.ServeHTTP(w, r); w.Code != c.status {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			cancel()
		}
		if runs != c.runs {
			t.Errorf("%s: run %d times", name, runs)
		}
	}
}

// TestPanicIsNoAnswer: it propagates to the server, and a retry is accepted at once.
func TestPanicIsNoAnswer(t *testing.T) {
	var s *site
	s = serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "half an answer")
		if s.runs.Load() == 1 {
			panic(http.ErrAbortHandler)
		}
	})
	r, _ := http.NewRequest("POST", s.URL+"/orders/7", strings.NewReader(`{"n":1}`))
	r.Header = http.Header{"Idempotency-Key": {"k"}, "Tenant": {"alice"}, "Content-Type": {"application/json"}}
	if got, err := s.Client().Do(r); err == nil {
		got.Body.Close()
		t.Errorf("a panic was answered %d", got.StatusCode)
	}
	s.want(t, s.ask(t, "k"), 200, "")
	if s.runs.Load() != 2 {
		t.Errorf("run %d times", s.runs.Load())
	}
}

// TestInFlight: a concurrent request gets Retry-After, or waits.
func TestInFlight(t *testing.T) {
	records := memory.NewIdempotency()
	began, release := make(chan struct{}), make(chan struct{})
	next := func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-release
		create(w, r)
	}
	s := serve(t, records, nil, next)
	patient := serve(t, records, &idempotency.HandlerOptions{Wait: bound}, next)
	short := serve(t, records, &idempotency.HandlerOptions{Wait: 50 * time.Millisecond}, next)
	var wg sync.WaitGroup
	wg.Go(func() { s.want(t, s.ask(t, "k"), 201, "") })
	<-began
	for _, impatient := range []*site{s, short} {
		busy := impatient.ask(t, "k")
		if impatient.want(t, busy, 409, "in-flight"); busy.Header.Get("Retry-After") != "1" {
			t.Errorf("%v", busy.Header)
		}
	}
	s.want(t, s.ask(t, "k", "body={}"), 422, "mismatch")
	for range 4 {
		wg.Go(func() {
			got := patient.ask(t, "k")
			if patient.want(t, got, 201, ""); got.Header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%v", got.Header)
			}
		})
	}
	close(release)
	wg.Wait()
	if n := s.runs.Load() + patient.runs.Load(); n != 1 {
		t.Errorf("run %d times", n)
	}
}

// TestStreamingIsRefused, with a clear error, and not silently buffered.
func TestStreamingIsRefused(t *testing.T) {
	s := serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, r *http.Request) {
		_, _, hijack := http.NewResponseController(w).Hijack()
		for what, err := range map[string]error{"flush": http.NewResponseController(w).Flush(), "hijack": hijack} {
			if !errors.Is(err, idempotency.ErrStreaming) || !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, ok := w.(http.Flusher); ok {
			t.Error("it claims to be a Flusher")
		}
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("a body of 204: %v", err)
		}
	})
	s.want(t, s.ask(t, "k"), 204, "")
}

// TestTrailersAreNotSent, nor announced: a replay would not have them.
func TestTrailersAreNotSent(t *testing.T) {
	s := serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Sum")
		w.Header().Set(http.TrailerPrefix+"Other", "x")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Sum", "1")
	})
	for range 2 {
		got := s.ask(t, "k")
		if s.want(t, got, 201, ""); len(got.Trailer) > 0 {
			t.Errorf("%v", got.Trailer)
		}
	}
}

// TestStoreOutOfReach: a request that cannot be recorded does not run, and an unrecorded answer is
// not sent.
func TestStoreOutOfReach(t *testing.T) {
	down := &interlock.Error{Op: "claim", Kind: interlock.Retryable, Err: errors.New("down")}
	unknown := &interlock.Error{Op: "finish", Kind: interlock.Uncertain, Err: errors.New("reply lost")}
	for _, c := range []struct {
		records failing
		reason  string
		runs    int64
	}{
		{failing{claim: down}, "store-unavailable", 0},
		{failing{claim: unknown}, "outcome-unknown", 0},
		{failing{finish: unknown}, "outcome-unknown", 1},
		{failing{finish: down}, "outcome-unknown", 1},
		{failing{finish: &interlock.Error{Op: "finish", Kind: interlock.Definite, Err: interlock.ErrLost}}, "overtaken", 1},
	} {
		c.records.Idempotency = memory.NewIdempotency()
		s := serve(t, c.records, nil, create)
		got := s.ask(t, "k")
		status := 503
		if c.reason == "overtaken" {
			status = 409
		}
		if s.want(t, got, status, c.reason); got.Header.Get("Retry-After") != "1" || s.runs.Load() != c.runs {
			t.Errorf("%s: %v, run %d times", c.reason, got.Header, s.runs.Load())
		}
	}
}

// failing is unreachable records.
type failing struct {
	driver.Idempotency
	claim, finish error
}

func (f failing) Claim(ctx context.Context, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	if f.claim != nil {
		return driver.IdempotencyRecord{}, f.claim
	}
	return f.Idempotency.Claim(ctx, c)
}

func (f failing) Update(ctx context.Context, u driver.IdempotencyUpdate) error {
	if f.finish != nil && u.Answer != nil {
		return f.finish
	}
	return f.Idempotency.Update(ctx, u)
}

// testLastPhaseOverHTTP: the client gets the answer in the transaction, the first time
// too, and not the handler's other output.
func testLastPhaseOverHTTP(t *testing.T, w world) {
	s := serve(t, w.records, nil, func(out http.ResponseWriter, r *http.Request) {
		_, err := idempotency.LastPhase(r.Context(), w.records, func(ctx context.Context, db tx) (idempotency.Response, error) {
			return idempotency.Response{Status: 202, Body: []byte("recorded"), Header: http.Header{"Location": {"/here"}, "Set-Cookie": {"a=b"}}},
				effect(ctx, db, "k", "last", 1)
		})
		if err != nil {
			t.Error(err)
		}
		http.Error(out, "too late", 500)
	})
	for i := range 2 {
		got := s.ask(t, "k")
		if got.Status != 202 || got.Body != "recorded" || got.Header.Get("Location") != "/here" || (got.Header.Get("Set-Cookie") == "") != (i == 1) {
			t.Errorf("%+v", got)
		}
	}
	if got := w.effects(t, "k"); got != "last by 1" || s.runs.Load() != 1 {
		t.Errorf("effects %s, run %d times", got, s.runs.Load())
	}
}

// TestBodyIsKept for a completer, which finishes what the handler began, under the
// same operation.
func TestBodyIsKept(t *testing.T) {
	records := memory.NewIdempotency()
	s := serve(t, records, &idempotency.HandlerOptions{KeepBody: true}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	s.want(t, s.ask(t, "k"), 500, "")
	completer := idempotency.NewCompleter(open(t, records, nil), map[string]idempotency.Func{"POST /orders/{id}": func(ctx context.Context) (idempotency.Response, error) {
		return idempotency.Response{Status: 201, Body: idempotency.From(ctx).Input()}, nil
	}}, &idempotency.CompleterOptions{After: 1})
	if n, err := completer.Pass(t.Context()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got := s.ask(t, "k"); got.Status != 201 || got.Body != `{"n":1}` || s.runs.Load() != 1 {
		t.Errorf("%+v", got)
	}
}

// TestKeysQuotedAndBare: the draft's quoted form and the bare form are the same key. A value that
// could be two keys, or none, is rejected.
func TestKeysQuotedAndBare(t *testing.T) {
	long := strings.Repeat("k", 255)
	for header, want := range map[string]string{
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`8e03978e-40d5-43dd-bc93-6894a57f9324`:   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		"  \"a b\"\t":                            "a b", `"a,b;c"`: "a,b;c", `"a\"b\\c"`: `a"b\c`, `"a";version=1`: "a", `a/b:c=+.`: "a/b:c=+.",
		long: long, `"` + long + `"`: long,
		``: "!", `""`: "!", `"a`: "!", `a"`: "!", `a b`: "!", `a,b`: "!", `"a","b"`: "!", `"a" b`: "!", `"a\b"`: "!", `"a\`: "!",
		"\"a\x00\"": "!", "é": "!", "\"é\"": "!", "a\x7f": "!", long + "k": "!", `"` + long + `k"`: "!", `a\b`: "!", `a;b`: "!",
	} {
		got, err := idempotency.ParseKey([]string{header})
		if want == "!" && (err == nil || got != "") || want != "!" && (err != nil || got != want) {
			t.Errorf("%q: %q, %v; want %q", header, got, err, want)
		}
	}
	if key, err := idempotency.ParseKey(nil); key != "" || err != nil {
		t.Errorf("no header: %q, %v", key, err)
	}
	if _, err := idempotency.ParseKey([]string{"a", "a"}); err == nil {
		t.Error("two headers are taken")
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{`"a"`, `a`, `"a\"`, `"";b`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := idempotency.ParseKey([]string{s})
		if (err == nil) == (key == "") || len(key) > 255 {
			t.Fatalf("%q: %q, %v", s, key, err)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err2 := idempotency.ParseKey([]string{quoted}); err == nil && (err2 != nil || again != key) {
			t.Fatalf("%q: %q, quoted %q is %q, %v", s, key, quoted, again, err2)
		}
	})
}

// TestPassesReadWhatIsDue: a pass of a reaper or of a completer reads only the due part of
// its index.
func TestPassesReadWhatIsDue(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), nil)
		p := &databases.Planned{BeginnerAt: w.DB}
		records := idempotency.NewSQL[tx](p, idempotency.Table{})
		_, err := records.Remove(t.Context(), 10)
		ok(t, err)
		_, err = records.Unfinished(t.Context(), anyUnfinished)
		ok(t, err)
		p.Want(t, "keep_until", "lease_until")
	}, databases.Pgx)
}

// TestLargeAnswerFailsClosed: it is shown once, and the request is never run again.
func TestLargeAnswerFailsClosed(t *testing.T) {
	large := strings.Repeat("x", idempotency.DefaultMaxAnswer+1)
	s := serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, large) })
	if first := s.ask(t, "k"); first.Status != 200 || first.Body != large {
		t.Errorf("%d, %d bytes", first.Status, len(first.Body))
	}
	for range 2 {
		got := s.ask(t, "k")
		if s.want(t, got, 409, "answer-not-kept"); got.Header.Get("Retry-After") != "" || !strings.Contains(got.Body, "status 200") {
			t.Errorf("%v %s", got.Header, got.Body)
		}
	}
	if s.runs.Load() != 1 {
		t.Errorf("run %d times", s.runs.Load())
	}
}

// TestAnswerBeyondMemory: an answer beyond the memory bound is not sent, and is in
// memory only up to the bound. If it would be stored, the request never runs again;
// otherwise it stays unfinished. A LastPhase is not affected.
func TestAnswerBeyondMemory(t *testing.T) {
	const most, size = 4 << 10, 64 << 20
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	status, held := 200, uint64(0)
	o := &idempotency.HandlerOptions{MaxResponse: most}
	s := serve(t, memory.NewIdempotency(), o, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Exactly") != "" {
			_, _ = w.Write(chunk[:most/2])
			_, _ = w.Write(chunk[:most-most/2])
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte("y"))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range size / len(chunk) {
			if n, err := w.Write(chunk); n != len(chunk) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		runtime.ReadMemStats(&after)
		held = after.TotalAlloc - before.TotalAlloc
	})
	whole := sha256.New()
	whole.Write([]byte("y"))
	for range size / len(chunk) {
		whole.Write(chunk)
	}
	for range 2 {
		got := s.ask(t, "k")
		if s.want(t, got, 409, "answer-not-kept"); !strings.Contains(got.Body, hex.EncodeToString(whole.Sum(nil))) {
			t.Error(got.Body)
		}
	}
	if s.runs.Load() != 1 || held > size/8 {
		t.Errorf("run %d times, %d bytes allocated", s.runs.Load(), held)
	}
	for _, status = range []int{500, 409} {
		for range 2 {
			s.want(t, s.ask(t, fmt.Sprint(status)), 500, "answer-too-large")
		}
		s.want(t, s.ask(t, fmt.Sprint(status), "body={}"), 422, "mismatch")
	}
	if s.runs.Load() != 5 {
		t.Errorf("run %d times", s.runs.Load())
	}
	for range 2 {
		if got := s.ask(t, "exactly", "Exactly: so"); got.Status != 200 || len(got.Body) != most {
			t.Errorf("%d, %d bytes", got.Status, len(got.Body))
		}
	}
}

// TestHeaderOfAnyBytesIsReplayed: every header that net/http accepts is replayed, and does
// not make the answer unreadable.
func TestHeaderOfAnyBytesIsReplayed(t *testing.T) {
	store := open(t, memory.NewIdempotency(), nil)
	given := http.Header{"Empty": {""}, "Link": {"a: b", "\x01\x7f\xe9\ttab", "two\r\nlines: here"}, "X": {"y"}}
	want := http.Header{"Empty": {""}, "Link": {"a: b", "\x01\x7f\xe9\ttab", "two  lines: here"}, "X": {"y"}}
	_, err := store.Do(t.Context(), order("k"), func(context.Context) (idempotency.Response, error) {
		return idempotency.Response{Header: given}, nil
	})
	ok(t, err)
	got, err := store.Do(t.Context(), order("k"), never)
	if err != nil || !reflect.DeepEqual(got.Header, want) {
		t.Errorf("%q, %v", got.Header, err)
	}
}

// TestUploadsAreRemoved: net/http removes the files of a form only from its own request, and
// the handler gets another one.
func TestUploadsAreRemoved(t *testing.T) {
	name := ""
	s := serve(t, memory.NewIdempotency(), nil, func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		f, _, err := r.FormFile("f")
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if onDisk, ok := f.(*os.File); ok {
			name = onDisk.Name()
		}
	})
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f")
	ok(t, err)
	_, err = part.Write(make([]byte, 64<<10))
	ok(t, err)
	ok(t, form.Close())
	r, err := http.NewRequest("POST", s.URL+"/orders/7", &body)
	ok(t, err)
	r.Header = http.Header{"Idempotency-Key": {"k"}, "Content-Type": {form.FormDataContentType()}}
	got, err := s.Client().Do(r)
	ok(t, err)
	got.Body.Close()
	if _, err := os.Stat(name); name == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%q: %v", name, err)
	}
}
