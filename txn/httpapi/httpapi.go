// Package httpapi starts and shows sagas, TCC and two-phase commit as JSON over HTTP, for services
// in any language, whose branches are HTTP endpoints too. It does not authenticate clients: put
// authentication and TLS in front of it. A client that may start a transaction makes this process
// send requests to the addresses in its request: see [Options.Allow].
//
//	c, err := coordinator.New(j, nil) // j: a journal.Journal
//	service, err := httpapi.New(c, &httpapi.Options{Participants: map[string]string{"north": "http://10.0.0.7/branch"}})
//	go locks.Keep(ctx, "orders", c.Run) // locks: a lock.Fenced
//	go service.Watch(ctx)
//	defer service.Close(ctx)
//	err = http.ListenAndServe("127.0.0.1:7461", service)
//
//	$ curl -d '{"type":"order","input":{"item":"book"},"steps":[
//	    {"name":"reserve","do":"http://10.0.0.8/reserve","undo":"http://10.0.0.8/release"},
//	    {"name":"pay","do":"http://10.0.0.9/pay","pivot":true}]}' \
//	  'http://127.0.0.1:7461/v1/sagas/order-42?wait=10s'
//	{"id":"order-42","type":"order","state":"SUCCEEDED","outputs":{"pay":{"receipt":7},"reserve":{}}}
//
// Branches are called as in package txn/branchhttp: a POST with the transaction, branch and
// operation in its headers. The answer is 2xx, 409 for a final refusal, or 425 while the participant
// is processing the call. After any other status the outcome is unknown.
// docs/reference/http.md has all requests and answers.
package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// Options of a service; nil and the zero value work.
type Options struct {
	// Client calls the branches; nil means http.DefaultTransport.
	Client *http.Client
	// Allow returns nil if branches at an address may be called, or the reason against it. It is
	// called before a transaction begins, and again before each call, because another process
	// may have begun it. It gets the address unresolved: it must consider names that resolve to
	// forbidden hosts, and dots in paths. nil permits every address: this is safe only if every
	// client of the service can reach the addresses itself. [Within] returns an Allow.
	Allow func(*url.URL) error
	// Steps bounds the steps of a saga; 0 means 1000.
	Steps int
	// Pause is the minimum of the pauses in the retry of a step; 0 means 100 milliseconds.
	Pause time.Duration
	// Participants has the addresses of the participants of two-phase commit, by name. It must be
	// the same in every process on the journal.
	Participants map[string]string
	// Sagas, TCC and TwoPC are the options of the protocols; nil means their defaults.
	Sagas *saga.Options
	TCC   *tcc.Options
	TwoPC *twopc.Options
}

// A Service is the http.Handler of a coordinator. It is safe for concurrent use. Cross-origin
// requests of browsers are refused with 403, and requests that do not arrive within 30 seconds
// with 408.
type Service struct {
	handler      http.Handler
	options      Options
	caller       branchhttp.Caller
	journal      *journal.Journal
	nudge        func(id string) // after an append
	sagas        *saga.Engine
	tcc          *tcc.Engine
	twopc        *twopc.Engine
	participants map[string]twopc.Definition[*twopc.Remote]
	ready        readiness
	patience     time.Duration // for the arrival of a request
	closed       atomic.Bool
}

// New returns the service of a coordinator that does not serve yet and has no protocols. It sends
// no request.
func New(c *coordinator.Coordinator, o *Options) (*Service, error) {
	s := &Service{journal: c.Journal(), nudge: c.Nudge, participants: map[string]twopc.Definition[*twopc.Remote]{}, patience: 30 * time.Second}
	s.options = *cmp.Or(o, &Options{})
	s.options.Steps = cmp.Or(max(s.options.Steps, 0), 1000)
	s.options.Pause = cmp.Or(max(s.options.Pause, 0), 100*time.Millisecond)
	s.caller = branchhttp.Caller{Client: s.options.Client}
	registered := []twopc.Defined{witnessDefinition}
	for name, address := range s.options.Participants {
		if err := s.permitted(address); err != nil {
			return nil, failure.Bug("make service", name, "%v", err)
		}
		s.participants[name] = twopc.Define(name, twopc.HTTP{URL: address, Caller: s.caller})
		registered = append(registered, s.participants[name])
	}
	var err error
	if s.sagas, err = saga.New(c, s.options.Sagas, s.defineOrder(kind), s.defineOrder(kindReported).OnEnd(s.reportEnd).EndTarget(reportedTo)); err != nil {
		return nil, err
	}
	if s.tcc, err = tcc.New(c, s.options.TCC, s.remoteResource()); err != nil {
		return nil, err
	}
	if s.twopc, err = twopc.New(c, s.options.TwoPC, registered...); err != nil {
		return nil, err
	}
	s.handler = s.routes()
	return s, nil
}

// Watch settles branches of two-phase commit that are in doubt, until ctx ends; see
// [twopc.Engine.Watch].
func (s *Service) Watch(ctx context.Context) error { return s.twopc.Watch(ctx) }

// Close waits for TCC transactions whose branches are being tried. When ctx ends it cancels the
// rest, and waits until that is decided. It refuses later requests that begin transactions.
func (s *Service) Close(ctx context.Context) {
	s.closed.Store(true)
	s.tcc.Close(ctx)
}

// begins is a request that begins a transaction, unless the service is closed.
func (s *Service) begins(answer func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if s.closed.Load() {
			return nil, &interlock.Error{Op: "serve request", Kind: interlock.Retryable, Err: interlock.ErrClosed}
		}
		return answer(r)
	}
}

// ServeHTTP answers a request; docs/reference/http.md has all of them.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// checkID rejects an invalid id; requests for lists have none. An id that is too long is left to the
// protocol, which answers 422.
func checkID(id string) error {
	if len(id) > driver.MaxTransaction {
		return nil
	}
	if err := driver.CheckText("the id", id, 0, driver.MaxTransaction); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

func (s *Service) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(*http.Request) (any, error){
		"GET /v1/sagas":                      s.listSagas,
		"GET /v1/tcc":                        s.listTCC,
		"GET /v1/2pc":                        s.listTwoPC,
		"POST /v1/sagas/{id}":                s.begins(s.startSaga),
		"GET /v1/sagas/{id}":                 s.showSaga,
		"POST /v1/sagas/{id}/signals/{name}": s.signalSaga,
		"POST /v1/sagas/{id}/{operation}":    s.operateSaga(),
		"POST /v1/tcc/{id}":                  s.begins(s.runTCC),
		"GET /v1/tcc/{id}":                   s.showTCC,
		"POST /v1/tcc/{id}/decision":         s.decideTCC,
		"POST /v1/tcc/{id}/{operation}":      s.operateTCC(),
		"POST /v1/2pc/{id}":                  s.begins(s.runTwoPC),
		"GET /v1/2pc/{id}":                   s.showTwoPC,
		"POST /v1/2pc/{id}/decision":         s.decideTwoPC,
		"POST /v1/2pc/{id}/{operation}":      s.operateTwoPC(),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			var data any
			err := s.receive(w, r)
			if err == nil {
				err = checkID(r.PathValue("id"))
			}
			if err == nil {
				data, err = answer(r)
			}
			reply(w, data, notBegun(r.Context(), err))
		})
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { reply(w, health{"ok"}, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		reply(w, health{"ok"}, s.ready.check(r.Context(), s.journal))
	})
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { refuse(w, r, http.StatusForbidden) }))
	return guard.Handler(withJSONErrors(mux))
}

// permitted returns why branches at an address are not called.
func (s *Service) permitted(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https"}, u.Scheme) {
		return badRequest("%q is not the address of a branch: it must begin with http:// or https://", failure.RedactURL(address))
	}
	if u.User != nil {
		return badRequest("the address %s has a user or a password: remove them, and sign calls instead", failure.RedactURL(address))
	}
	if s.options.Allow != nil {
		if err := s.options.Allow(u); err != nil {
			return badRequest("branches at %s are not called: %v", failure.RedactURL(address), err)
		}
	}
	return nil
}

// post calls the branch at an address. No input is null, so that the body is JSON.
func (s *Service) post(ctx context.Context, address string, c branch.Call, input []byte) ([]byte, error) {
	if err := s.permitted(address); err != nil {
		return nil, branch.Retry(err) // nothing was sent, and the address may be permitted later
	}
	if input == nil {
		input = []byte("null")
	}
	return s.caller.Post(ctx, address, c, input)
}

// host returns the target of an address.
func host(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Host
}

// health is the answer of /healthz and /readyz.
type health struct {
	Status string `json:"status"`
}

// readiness checks the journal at most once a second, because the request needs no credential.
type readiness struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

func (r *readiness) check(ctx context.Context, j *journal.Journal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.asked) < time.Second {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	r.err = nil
	if _, err := j.Heads(ctx, "", 1); err != nil { // err may contain the journal's address
		r.err = &requestError{503, interlock.Retryable, "the journal does not answer"}
	}
	r.asked = time.Now()
	return r.err
}

// withJSONErrors serves the routes of mux. Other requests are answered with a JSON error and never
// redirected, because a redirected POST may become a GET.
func withJSONErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := r.URL.EscapedPath(); at != path.Clean(at) {
			refuse(w, r, http.StatusNotFound)
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			w = jsonErrorWriter{w, r}
		}
		mux.ServeHTTP(w, r)
	})
}

// jsonErrorWriter replaces mux's plain text errors.
type jsonErrorWriter struct {
	http.ResponseWriter
	request *http.Request
}

func (u jsonErrorWriter) WriteHeader(status int)             { refuse(u.ResponseWriter, u.request, status) }
func (u jsonErrorWriter) Write(text []byte) (n int, _ error) { return len(text), nil }

// refuse answers a request that was not executed.
func refuse(w http.ResponseWriter, r *http.Request, status int) {
	why := strings.ToLower(http.StatusText(status))
	reply(w, nil, &requestError{status, interlock.Definite, fmt.Sprintf("%.20s %.300s: %s", r.Method, r.URL.EscapedPath(), why)})
}
