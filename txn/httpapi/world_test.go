package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	testbed.Main(m)
}

var ok = txntest.OK

// shop has the branches of other services, behind one address. It keeps the outcome of each branch,
// and gives a repeated call the first answer.
type shop struct {
	url string

	mu      sync.Mutex
	states  map[string]string // by transaction and branch
	bodies  map[string]string // of the last call, by branch and operation
	untils  map[string]time.Time
	refuse  string // the branch that refuses
	down    bool
	broken  string        // the path that fails
	failing bool          // whatever is called after a decision fails
	wait    chan struct{} // for which a prepare or a try waits, if it is not nil
	asked   chan struct{} // one does
	history []string
}

// newShop returns a shop for a test, which runs in parallel.
func newShop(t *testing.T) *shop {
	t.Helper()
	t.Parallel()
	s := &shop{states: map[string]string{}, bodies: map[string]string{}, untils: map[string]time.Time{}, asked: make(chan struct{}, 9)}
	handler := branchhttp.Handler(s.answer)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		failing, broken := s.failing, s.broken != "" && strings.HasPrefix(r.URL.Path, s.broken)
		s.mu.Unlock()
		if failing && (r.URL.Path == "/confirm" || slices.Contains([]string{"confirm", "commit"}, r.Header.Get("Interlock-Operation"))) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if broken {
			w.WriteHeader(http.StatusConflict)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

var errNo = errors.New("no")

func (s *shop) answer(ctx context.Context, input []byte) ([]byte, error) {
	c := branch.From(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if wait := s.wait; wait != nil && (c.Operation == branch.Prepare || c.Operation == branch.Try) {
		s.mu.Unlock()
		s.asked <- struct{}{}
		<-wait
		s.mu.Lock()
	}
	if s.down {
		return nil, errNo
	}
	key := c.Transaction + " " + c.Branch
	s.bodies[c.Branch+" "+string(c.Operation)] = string(input)
	s.history = append(s.history, c.Branch+" "+string(c.Operation))
	switch c.Operation {
	case branch.Do, branch.Try, branch.Prepare:
		if c.Branch == s.refuse || s.states[key] == "back" {
			return nil, branch.Fail(errNo)
		}
		s.states[key], s.untils[key] = "held", c.Until
	case branch.Confirm, branch.Commit:
		s.states[key] = "final"
	default:
		s.states[key] = "back"
	}
	return fmt.Appendf(nil, `{"branch":%q}`, c.Branch), nil
}

func (s *shop) state(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[key]
}

// count returns the number of branches in a state.
func (s *shop) count(state string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, got := range s.states {
		if got == state {
			n++
		}
	}
	return n
}

func (s *shop) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// service is a Service over a journal in memory, served until it is stopped.
type service struct {
	t    *testing.T
	url  string
	web  *httpapi.Service
	stop func()
}

// wild is a name that must be encoded everywhere.
const wild = "order/42 é?"

func serve(t *testing.T, store driver.Journal, o *httpapi.Options) *service {
	t.Helper()
	return servePolling(t, store, o, 20*time.Millisecond)
}

// open returns a new shop, and a service with a journal of its own.
func open(t *testing.T) (*shop, *service) {
	t.Helper()
	return newShop(t), serve(t, memory.NewJournal(), nil)
}

// servePolling serves with a poll interval, for tests of long transactions.
func servePolling(t *testing.T, store driver.Journal, o *httpapi.Options, poll time.Duration) *service {
	t.Helper()
	transport := &http.Transport{}
	if o == nil {
		o = &httpapi.Options{}
	}
	if o.Client == nil {
		o.Client = &http.Client{Transport: transport}
	}
	o.Sagas = &saga.Options{}
	if o.Pause == 0 {
		o.Pause = time.Millisecond // tests of other subjects must not wait for it
	}
	j, err := journal.New(store, &journal.Options{Shards: 2})
	ok(t, err)
	c, err := coordinator.New(j, &coordinator.Options{Poll: poll, Recheck: 10 * poll})
	ok(t, err)
	w, err := httpapi.New(c, o)
	ok(t, err)
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	ok(t, err)
	claim, err := locks.Acquire(t.Context(), "shards")
	ok(t, err)
	served := make(chan error, 1)
	go func() { served <- c.Run(context.Background(), claim) }()
	server := httptest.NewServer(w)
	s := &service{t: t, url: server.URL, web: w}
	s.stop = sync.OnceFunc(func() {
		server.Close()
		ctx := context.Background()
		w.Close(ctx)
		ok(t, claim.Release(ctx))
		<-served
		ok(t, locks.Close(ctx))
		ok(t, d.Close(ctx))
		ok(t, j.Close())
		transport.CloseIdleConnections()
	})
	t.Cleanup(s.stop)
	return s
}

// text returns the answer to a GET.
func (s *service) text(path string) string {
	s.t.Helper()
	text, err := json.Marshal(s.do("GET", path, "", 200))
	ok(s.t, err)
	return string(text)
}

// do sends a request, requires a status, and returns the answer's JSON.
func (s *service) do(method, path, body string, want ...int) map[string]any {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	ok(s.t, err)
	answer, err := http.DefaultClient.Do(r)
	ok(s.t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	ok(s.t, err)
	if !slices.Contains(want, answer.StatusCode) {
		s.t.Fatalf("%s %s: %d %s, want %v", method, path, answer.StatusCode, text, want)
	}
	var data map[string]any
	if err := json.Unmarshal(text, &data); err != nil || answer.Header.Get("Content-Type") != "application/json" {
		s.t.Fatalf("%s %s: %s is no JSON: %v", method, path, text, err)
	}
	if answer.StatusCode >= 400 && (len(data) != 2 || data["error"] == "" || data["kind"] == "" || data["error"] == nil || data["kind"] == nil) {
		s.t.Fatalf("%s %s: %s is not what errors are", method, path, text)
	}
	return data
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	text := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	txntest.Equal(t, what, text(got), text(want))
}

func has(t *testing.T, list []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(list, w) {
			t.Errorf("%v has no %q", list, w)
		}
	}
}
