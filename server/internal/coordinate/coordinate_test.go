package coordinate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

const patience = time.Minute

// running is a service that serves requests until it is stopped.
type running struct {
	t       *testing.T
	target  backend.Target
	address string
	client  *http.Client
	stop    context.CancelFunc
	ended   chan error
}

func start(t *testing.T, url string) *running { return startWith(t, url, Config{}) }

// startWith starts a service with a configuration.
func startWith(t *testing.T, url string, c Config) *running {
	t.Helper()
	target, err := backend.Parse(url)
	ok(t, err)
	c.Backend, c.Shards, c.TTL, c.Calls.Local = target, 2, 3*time.Second, true
	if c.Tell == nil {
		c.Tell = func(err error) { t.Log(err) }
	}
	s, err := Open(t.Context(), c)
	ok(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	ctx, stop := context.WithCancel(context.Background())
	transport := &http.Transport{}
	r := &running{t: t, target: target, address: l.Addr().String(), client: &http.Client{Transport: transport}, stop: stop, ended: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		err := s.Serve(ctx, l, func() { close(ready) })
		s.Close()
		r.ended <- err
		close(r.ended)
	}()
	select {
	case <-ready:
	case err := <-r.ended:
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); <-r.ended; transport.CloseIdleConnections() })
	return r
}

// do sends a request and returns its answer.
func (r *running) do(method, path, body string, headers ...string) (status int, answer map[string]any, err error) {
	request, err := http.NewRequest(method, "http://"+r.address+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	request.Host = request.Header.Get("Host")
	response, err := r.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, errors.Join(err, json.Unmarshal(text, &answer))
}

func (r *running) must(method, path, body string, want int, headers ...string) map[string]any {
	r.t.Helper()
	status, answer, err := r.do(method, path, body, headers...)
	if err != nil || status != want {
		r.t.Fatalf("%s %s: %d %v, %v, want %d", method, path, status, answer, err, want)
	}
	return answer
}

// busy returns a participant that works until it may end or its caller has disconnected.
func busy(t *testing.T) (order string, at *atomic.Int64, well *atomic.Bool) {
	t.Helper()
	at, well = new(atomic.Int64), new(atomic.Bool)
	server := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		if well.Load() {
			return nil, nil
		}
		at.Add(1)
		defer at.Add(-1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}))
	t.Cleanup(server.Close)
	return fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":%q,"pivot":true}]}`, server.URL), at, well
}

// TestStopIsOrderly checks that waiting callers are answered immediately, calls are
// cancelled, new requests are refused, and another service continues the transactions.
func TestStopIsOrderly(t *testing.T) {
	t.Parallel()
	url := "etcd://" + testbed.Etcd(t).Addr()
	order, at, well := busy(t)
	s := start(t, url)
	const waiting = 8
	answers := make(chan string, waiting)
	for i := range waiting {
		go func() {
			status, answer, err := s.do("POST", fmt.Sprintf("/v1/sagas/%d?wait=1m", i), order)
			answers <- fmt.Sprint(status, " ", answer["kind"], " ", answer["state"], " ", err)
		}()
	}
	testbed.Eventually(t, "all are called", patience, func() bool { return at.Load() == waiting })
	began := time.Now()
	s.stop()
	for range waiting {
		if got := <-answers; got != "504 uncertain <nil> <nil>" && got != "200 <nil> RUNNING <nil>" && got != "503 retryable <nil> <nil>" {
			t.Error("the waiting caller got", got)
		}
	}
	if err := <-s.ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if took := time.Since(began); took > shutdownTimeout+5*time.Second {
		t.Errorf("it ended after %v", took)
	}
	testbed.Eventually(t, "no call is running", patience, func() bool { return at.Load() == 0 })
	if conn, err := net.Dial("tcp", s.address); err == nil {
		conn.Close()
		t.Error("a request is accepted")
	}
	well.Store(true)
	next := start(t, url)
	for i := range waiting {
		if got := next.must("GET", fmt.Sprintf("/v1/sagas/%d?wait=1m", i), "", 200)["state"]; got != "SUCCEEDED" {
			t.Errorf("saga %d is %v", i, got)
		}
	}
}

// TestPagesAreRefused includes pages of the service's own origin, whose name resolves to
// its address.
func TestPagesAreRefused(t *testing.T) {
	t.Parallel()
	order, _, well := busy(t)
	well.Store(true)
	s := startWith(t, "etcd://"+testbed.Etcd(t).Addr(), Config{Access: Access{Hosts: []string{"coordinator.internal"}}})
	own := "rebound.example:7461"
	s.must("POST", "/v1/sagas/1", order, 421, "Host", own, "Origin", "http://"+own)
	s.must("POST", "/v1/sagas/1", order, 403, "Host", "coordinator.internal", "Origin", "http://coordinator.internal", "Sec-Fetch-Site", "same-origin")
	s.must("POST", "/v1/sagas/1", order, 403, "Origin", "null")
	s.must("POST", "/v1/2pc/1/decision", "", 403, "Sec-Fetch-Site", "cross-site")
	s.must("GET", "/v1/sagas/1", "", 404)
	for _, method := range []string{"GET", "POST", "HEAD", "OPTIONS"} { // by a name that resolves to its address
		if status, _, err := s.do(method, "/v1/sagas/1", order, "Host", own); status != http.StatusMisdirectedRequest {
			t.Errorf("%s: %d, %v", method, status, err)
		}
	}
	s.must("POST", "/v1/sagas/1?wait=1m", order, 200, "Host", "Coordinator.internal:7461") // from a program or a proxy
}

// TestHeadersThatDoNotCome checks that slow and endless headers are rejected.
func TestHeadersThatDoNotCome(t *testing.T) {
	t.Parallel()
	s := start(t, "etcd://"+testbed.Etcd(t).Addr())
	for name, sent := range map[string]string{
		"nothing": "", "a part": "POST /v1/sagas/1 HTTP/1.1\r\nHost: x\r\nX: ", "too many": "GET /v1/sagas/1 HTTP/1.1\r\nX: " + strings.Repeat("x", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", s.address)
			ok(t, err)
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(conn, sent) // it may reject to read this
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the service waits for it")
			}
		})
	}
}

// lines has the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// TestFailuresAreLogged checks that a failing transaction is reported with its name, within the
// limits of package observe.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	url := "etcd://" + testbed.Etcd(t).Addr()
	target, err := backend.Parse(url)
	ok(t, err)
	store, disconnect, err := target.Journal(t.Context(), "")
	ok(t, err)
	defer disconnect()
	j, err := journal.New(store, &journal.Options{Shards: 2})
	ok(t, err)
	defer j.Close()
	_, err = j.Begin(t.Context(), "damaged", "tcc:x", time.Now(), journal.Entry{Kind: "tried", Step: "a", Data: []byte("{")})
	ok(t, err)
	log := make(lines, 100)
	startWith(t, url, Config{Log: slog.New(slog.NewTextHandler(log, nil))})
	for limit := time.After(patience); ; {
		select {
		case line := <-log:
			if strings.Contains(line, `msg="coordinator failed" transaction=damaged `) {
				return
			}
			t.Log(line)
		case <-limit:
			t.Fatal("it is not logged")
		}
	}
}

// TestManyAtOnceOnFewConnections checks that the service does not exceed the connections of a
// database that it shares with other clients.
func TestManyAtOnceOnFewConnections(t *testing.T) {
	t.Parallel()
	order, _, well := busy(t)
	well.Store(true)
	for name, url := range map[string]string{
		"mariadb":  "mariadb://root@" + testbed.MariaDB(t, "--max-connections=30").Addr() + "/test",
		"postgres": testbed.Postgres(t, "-c", "max_connections=30").URL(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, url)
			const many = 150
			answers := make(chan string, many)
			for i := range many {
				go func() {
					status, answer, err := s.do("POST", fmt.Sprintf("/v1/sagas/%d?wait=1m", i), order)
					answers <- fmt.Sprint(status, " ", answer["error"], " ", answer["state"], " ", err)
				}()
			}
			for range many {
				if got := <-answers; got != "200 <nil> SUCCEEDED <nil>" {
					t.Error(got)
				}
			}
		})
	}
}

// TestToken checks that a client without the token can neither read nor begin anything.
func TestToken(t *testing.T) {
	t.Parallel()
	file := secrets(t, "s3cret-0123456789\n")
	reported := make(chan error, 100)
	r := startWith(t, "etcd://"+testbed.Etcd(t).Addr(), Config{Access: Access{TokenFile: file}, Tell: func(err error) { reported <- err }})
	const path, body = "/v1/sagas/1", `{"type":"x","steps":[{"name":"a","sleep":"1ms"}]}`
	for _, shown := range []string{"", "Bearer", "Bearer ", "Bearer s3cret-012345678", "Bearer s3cret-01234567890", "Basic s3cret-0123456789", "s3cret-0123456789"} {
		status, answer, err := r.do("POST", path, body, "Authorization", shown)
		if err != nil || status != http.StatusUnauthorized || answer["kind"] != "definite" {
			t.Errorf("%q: %d, %v, %v", shown, status, answer, err)
		}
	}
	if status, _, err := r.do("GET", path, "", "Authorization", "bearer s3cret-0123456789"); err != nil || status != http.StatusNotFound {
		t.Errorf("a saga was begun: %d, %v", status, err)
	}
	if status, answer, err := r.do("POST", path+"?wait=1m", body, "Authorization", "Bearer s3cret-0123456789"); err != nil || status != http.StatusOK {
		t.Errorf("with the token: %d, %v, %v", status, answer, err)
	}
	for _, health := range []string{"/healthz", "/readyz"} {
		r.must("GET", health, "", 200)
	}

	status := func(token string) int {
		status, _, err := r.do("GET", path, "", "Authorization", "Bearer "+token)
		if err != nil {
			t.Error(err)
		}
		return status
	}
	rewrite(t, file, "s3cret-0123456789\nnext-0123456789ab\n", 0o600)
	testbed.Eventually(t, "the new token is known", patience, func() bool { return status("next-0123456789ab") == 200 })
	if got := status("s3cret-0123456789"); got != 200 {
		t.Errorf("the former token beside the new one: %d", got)
	}
	rewrite(t, file, "next-0123456789ab\n", 0o600)
	testbed.Eventually(t, "the former token is gone", patience, func() bool { return status("s3cret-0123456789") == 401 })
	rewrite(t, file, "other-0123456789a\n", 0o644) // rejected
	testbed.Eventually(t, "it is reported that others can read the file", patience, func() bool {
		if old, new := status("next-0123456789ab"), status("other-0123456789a"); old != 200 || new != 401 {
			t.Fatalf("of a file that others can read: %d, and %d for what it had before", new, old)
		}
		select {
		case err := <-reported:
			return strings.Contains(err.Error(), file+" can be read")
		default:
			return false
		}
	})
}

// TestASlowReportBlocksNoRequest checks that a missing file of secrets is reported once, and that
// only the request that reports it waits for that.
func TestASlowReportBlocksNoRequest(t *testing.T) {
	t.Parallel()
	file := secrets(t, "s3cret-0123456789")
	reports, unblock := make(chan error, 10), make(chan struct{})
	f, err := openSecrets(file, minTokenLength, nil, func(err error) { reports <- err; <-unblock })
	ok(t, err)
	ok(t, os.Remove(file))
	all := func() chan []string {
		f.mu.Lock()
		f.looked = time.Time{}
		f.mu.Unlock()
		found := make(chan []string, 1)
		go func() { found <- f.all() }()
		return found
	}
	first := all()
	if err := <-reports; !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for range 3 {
		done := make(chan chan []string, 1)
		go func() { done <- all() }()
		select {
		case found := <-done:
			if got := <-found; len(got) != 1 {
				t.Errorf("it has %q", got)
			}
		case <-time.After(patience / 6):
			close(unblock)
			t.Fatal("another request waits for the report")
		}
	}
	close(unblock)
	if <-first; len(reports) > 0 {
		t.Errorf("reported again: %v", <-reports)
	}
}

// TestPrivateFiles checks that only the owner may read a file of secrets, and the group if the
// owner is root.
func TestPrivateFiles(t *testing.T) {
	for mode, want := range map[os.FileMode]struct{ own, roots bool }{
		0o400: {true, true}, 0o600: {true, true}, 0o440: {false, true}, 0o640: {false, true},
		0o660: {}, 0o450: {}, 0o444: {}, 0o604: {}, 0o601: {},
	} {
		if own, roots := private(mode, false), private(mode, true); own != want.own || roots != want.roots {
			t.Errorf("%v: %v, of root %v; want %+v", mode, own, roots, want)
		}
	}
}

// secrets writes a file of secrets.
func secrets(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secrets")
	rewrite(t, file, text, 0o600)
	return file
}

// rewrite replaces a file, as a rotation of secrets does.
func rewrite(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	ok(t, errors.Join(os.WriteFile(file+".new", []byte(text), mode), os.Chmod(file+".new", mode), os.Rename(file+".new", file)))
}

// TestSweeps checks that participants over HTTP receive low-water marks.
func TestSweeps(t *testing.T) {
	t.Parallel()
	target, err := backend.Parse(testbed.Postgres(t).URL())
	ok(t, err)
	var got branchhttp.Mark
	participant := httptest.NewServer(branchhttp.ForgetHandler(func(_ context.Context, m branchhttp.Mark) (int, error) { got = m; return 0, nil }))
	defer participant.Close()
	began := time.Now()
	s, err := Open(t.Context(), Config{Backend: target, Shards: 2, TTL: 3 * time.Second, Calls: Calls{Local: true}, Sweeps: []string{participant.URL}, Tell: func(err error) { t.Error(err) }})
	ok(t, err)
	defer s.Close()
	if err := s.runtime.Coordinator().Retain(t.Context()); err != nil || got.Before.Before(began.Add(-25*time.Hour)) || len(got.Except) != 0 {
		t.Errorf("%v; %+v arrived", err, got)
	}
}

// TestCopiesOnAPausedStore sends copies of a request while the journal's store does not answer.
// None may get the answer that the saga has certainly not begun: one of them may have begun it.
func TestCopiesOnAPausedStore(t *testing.T) {
	t.Parallel()
	etcd := testbed.Etcd(t)
	target, err := backend.Parse("etcd://" + etcd.Addr())
	ok(t, err)
	store, disconnect, err := target.Journal(t.Context(), "")
	ok(t, err)
	defer disconnect()
	j, err := journal.New(store, &journal.Options{Patience: 2 * time.Second}) // all copies arrive within it
	ok(t, err)
	defer j.Close()
	c, err := coordinator.New(j, nil)
	ok(t, err)
	service, err := httpapi.New(c, nil)
	ok(t, err)
	server := httptest.NewServer(service)
	defer server.Close()
	client := server.Client()
	post := func(ctx context.Context, id string) string {
		body := `{"type":"x","steps":[{"name":"a","sleep":"1h"}]}`
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/v1/sagas/"+id, strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		answer, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		return fmt.Sprint(answer.StatusCode)
	}
	etcd.Pause()
	const copies = 12
	answers := make(chan string, 2*copies)
	for range copies {
		go func() { answers <- post(t.Context(), "one") }()
	}
	for range copies {
		if got := <-answers; got != "504" {
			t.Errorf("a copy is answered %s, want 504", got)
		}
	}
	for i := range copies { // most are never sent to the store
		go func() { answers <- post(t.Context(), fmt.Sprint("other", i)) }()
	}
	for range copies {
		if got := <-answers; got != "504" && got != "503" {
			t.Errorf("a request is answered %s, want 503 or 504", got)
		}
	}
	etcd.Resume()
	testbed.Eventually(t, "a repeated request finds out", patience, func() bool { return post(t.Context(), "one") == "200" })
}
