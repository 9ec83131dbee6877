// Package coordinate runs a coordinator of transactions as a service: it owns its part
// of the shards of a journal, beside others of its kind, and takes requests over HTTP.
// It decides nothing: package txn/httpapi and what stands below it do.
package coordinate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Config is what a service is.
type Config struct {
	Backend backend.Target // of the journal, and of the claims on its shards
	Journal string         // its name there; empty is the default
	Shards  int            // of the journal; all services on it have the same number
	TTL     time.Duration  // of the claims
	Prefix  string         // of their names
	Keep    time.Duration  // how long what has ended is kept; below zero for ever
	Web     httpapi.Options
	Calls   Calls         // how branches are called
	Sweeps  []string      // addresses of participants that are sent what they may forget
	Access  Access        // of clients
	Timeout time.Duration // for a request to come before it is authenticated; 0 means 15 seconds
	// Tell receives errors outside the transactions' own calls.
	Tell func(error)
}

// Access limits the clients of the service.
type Access struct {
	TokenFile string   // a request has to show one of the tokens in it, as a bearer; empty is none
	Hosts     []string // names of the service in the Host of requests, beside localhost and addresses
	Total     int      // connections; 0 means 2048
	Each      int      // connections of one address; 0 means 512
}

// shortestToken is the least length of a token.
const shortestToken = 16

// shutdown bounds how long requests that are under way may take when the service ends.
const shutdown = 10 * time.Second

// longest is for how long a request may wait for a transaction's end.
const longest = 10 * time.Minute

// Service is one that runs.
type Service struct {
	config  Config
	runtime *txn.Runtime
	web     *httpapi.Service
	tokens  *secretFile // nil if none is needed
	serving atomic.Bool // it owns its part, or stands by for it
	closers []func()
}

// Open connects to the backend. The context bounds the opening only.
func Open(ctx context.Context, c Config) (_ *Service, err error) {
	s := &Service{config: c}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if c.Access.TokenFile != "" {
		if s.tokens, err = openSecrets(c.Access.TokenFile, shortestToken, c.Tell); err != nil {
			return nil, failure("--token-file: %w", err)
		}
	}
	if c.Web.Client == nil {
		if c.Web.Client, err = c.Calls.client(c.Tell); err != nil {
			return nil, failure("calls of branches: %w", err)
		}
		s.closing(c.Web.Client.CloseIdleConnections)
	}
	if err := errors.Join(journal.CheckURL(c.Backend.URL), c.Backend.CheckTTL(c.TTL)); err != nil {
		return nil, err
	}
	b, err := c.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	s.closing(func() { _ = b.Close(context.Background()) }) // what is held expires
	s.runtime, err = txn.On(ctx, b, &txn.Options{
		Journal: c.Journal, Shards: c.Shards, Locks: backend.Options{TTL: c.TTL, Prefix: c.Prefix}, Failed: c.Tell,
		Coordinator: &coordinator.Options{Retention: coordinator.Retention{Keep: c.Keep, Sweeps: c.sweeps()}, Hooks: &observe.Coordinator{
			Failed: func(e observe.CoordinatorFailed) { c.Tell(e.Err) },
		}},
	})
	if err != nil {
		return nil, err
	}
	s.closing(func() { _ = s.runtime.Close(context.Background()) })
	s.web, err = httpapi.New(s.runtime.Coordinator(), &c.Web)
	return s, err
}

// sweeps send participants what they may forget.
func (c Config) sweeps() (all []coordinator.Sweep) {
	for _, address := range c.Sweeps {
		all = append(all, coordinator.SweepAt(branchhttp.Redact(address), branchhttp.Caller{Client: c.Web.Client}, address))
	}
	return all
}

// failure is a mistake in the configuration.
func failure(format string, args ...any) error {
	return &interlock.Error{Op: "configure coordinator", Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
}

func (s *Service) closing(f func()) { s.closers = append(s.closers, f) }

// Close disconnects; call it after Serve has returned.
func (s *Service) Close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// Serve takes requests on l, which it closes, and drives what it owns, until ctx ends
// or one of that cannot go on. It calls ready once it takes requests, which is when it has
// joined the others on the journal: what does not fit theirs is an error before.
func (s *Service) Serve(ctx context.Context, l net.Listener, ready func()) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := s.server(ctx)
	if err := s.runtime.Start(ctx); err != nil {
		return errors.Join(err, l.Close(), s.runtime.Close(ctx))
	}
	var work sync.WaitGroup
	ready()
	s.serving.Store(true)
	work.Go(func() {
		stop(server.Serve(newCapped(l, orElse(s.config.Access.Total, 2048), orElse(s.config.Access.Each, 512))))
	})
	<-ctx.Done()
	s.serving.Store(false)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer cancel()
	if server.Shutdown(bound) != nil {
		_ = server.Close() // callers that still wait get an error by that
	}
	s.web.Close(bound)
	work.Wait()
	return errors.Join(context.Cause(ctx), s.runtime.Close(ctx))
}

// server is the HTTP server. A request has to come within its ReadTimeout until it is
// authenticated; the service itself bounds how long its body takes from then on.
func (s *Service) server(ctx context.Context) *http.Server {
	timeout := orElse(s.config.Timeout, 15*time.Second)
	handler := addressed(s.config.Access.Hosts, trusted(s.tokens, pageless(s.well(s.web))))
	return &http.Server{Handler: handler, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: min(timeout, 10*time.Second), ReadTimeout: timeout, IdleTimeout: 2 * time.Minute, WriteTimeout: longest + time.Minute, MaxHeaderBytes: 64 << 10}
}

// well is a handler that is not ready while the service stops.
func (s *Service) well(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && !s.serving.Load() {
			refuse(w, http.StatusServiceUnavailable, "the coordinator is stopping")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func orElse[T comparable](value, otherwise T) T {
	var none T
	if value == none {
		return otherwise
	}
	return value
}
