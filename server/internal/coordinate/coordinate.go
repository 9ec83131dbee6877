// Package coordinate runs a coordinator of transactions as a service. It owns a part of
// the shards of a journal, shared with other services, and serves requests over HTTP. It
// makes no decisions: package txn/httpapi and the packages below it do.
package coordinate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Config configures a service.
type Config struct {
	Backend backend.Target // of the journal, and of the claims on its shards
	Journal string         // its name there; empty means the default
	Shards  int            // of the journal; equal in all of its services
	TTL     time.Duration  // of the claims
	Prefix  string         // of their names
	Keep    time.Duration  // retention of ended transactions; negative means for ever
	Web     httpapi.Options
	Calls   Calls         // calls of branches
	Sweeps  []string      // addresses of participants that receive low-water marks
	Access  Access        // limits of clients
	Timeout time.Duration // for a request to arrive before authentication; 0 means 15 seconds
	// Tell receives errors of the service, which are not those of a transaction.
	Tell func(error)
	// Log receives the coordinator's warnings; nil means slog.Default.
	Log *slog.Logger
}

// Access limits the clients of the service.
type Access struct {
	TokenFile string   // a request needs one of its tokens as a bearer token; empty means none
	Hosts     []string // allowed Host names of requests, in addition to localhost and addresses
	Total     int      // connections; 0 means 2048
	Each      int      // connections of one address; 0 means 512
}

// minTokenLength is the minimum length of a token.
const minTokenLength = 16

// shutdownTimeout bounds requests in progress when the service ends.
const shutdownTimeout = 10 * time.Second

// maxRequestWait bounds the time for which a request may wait for a transaction's end.
const maxRequestWait = 10 * time.Minute

// Service is a running service.
type Service struct {
	config  Config
	runtime *txn.Runtime
	web     *httpapi.Service
	tokens  *secretFile // nil if no token is needed
	serving atomic.Bool // it owns its part, or is on standby
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
		if s.tokens, err = openSecrets(c.Access.TokenFile, minTokenLength, nil, c.Tell); err != nil {
			return nil, failure("--token-file: %w", err)
		}
	}
	if c.Web.Client == nil {
		if c.Web.Client, err = c.Calls.client(c.Tell); err != nil {
			return nil, failure("calls of branches: %w", err)
		}
		s.onClose(c.Web.Client.CloseIdleConnections)
	}
	if err := errors.Join(journal.CheckURL(c.Backend.URL), c.Backend.CheckTTL(c.TTL)); err != nil {
		return nil, err
	}
	b, err := c.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	s.onClose(func() { _ = b.Close(context.Background()) }) // held claims expire
	s.runtime, err = txn.On(ctx, b, &txn.Options{
		Journal: c.Journal, Shards: c.Shards, Locks: backend.Options{TTL: c.TTL, Prefix: c.Prefix}, Failed: c.Tell,
		Coordinator: &coordinator.Options{Retention: coordinator.Retention{Keep: c.Keep, Sweeps: c.sweeps()}, Hooks: &observe.Coordinator{Log: c.Log}},
	})
	if err != nil {
		return nil, err
	}
	s.onClose(func() { _ = s.runtime.Close(context.Background()) })
	s.web, err = httpapi.New(s.runtime.Coordinator(), &c.Web)
	return s, err
}

// sweeps returns the senders of low-water marks to participants.
func (c Config) sweeps() (all []coordinator.Sweep) {
	for _, address := range c.Sweeps {
		all = append(all, coordinator.SweepAt(branchhttp.Redact(address), branchhttp.Caller{Client: c.Web.Client}, address))
	}
	return all
}

// failure returns an error of the configuration.
func failure(format string, args ...any) error {
	return &interlock.Error{Op: "configure coordinator", Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
}

func (s *Service) onClose(f func()) { s.closers = append(s.closers, f) }

// Close disconnects; call it after Serve has returned.
func (s *Service) Close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// Serve serves requests on l, which it closes, and drives its transactions, until ctx ends
// or a part of it fails. It calls ready when it has joined the other services on the
// journal and serves. If its configuration does not match theirs, it fails before that.
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
		stop(server.Serve(newLimitedListener(l, cmp.Or(s.config.Access.Total, 2048), cmp.Or(s.config.Access.Each, 512))))
	})
	<-ctx.Done()
	s.serving.Store(false)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(bound) != nil {
		_ = server.Close() // waiting callers get an error
	}
	s.web.Close(bound)
	work.Wait()
	return errors.Join(context.Cause(ctx), s.runtime.Close(ctx))
}

// server returns the HTTP server. A request must arrive within ReadTimeout until it is
// authenticated; after that, the service itself bounds the time of its body.
func (s *Service) server(ctx context.Context) *http.Server {
	timeout := cmp.Or(s.config.Timeout, 15*time.Second)
	handler := requireHost(s.config.Access.Hosts, requireToken(s.tokens, rejectPages(s.readiness(s.web))))
	return &http.Server{Handler: handler, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: min(timeout, 10*time.Second), ReadTimeout: timeout, IdleTimeout: 2 * time.Minute, WriteTimeout: maxRequestWait + time.Minute, MaxHeaderBytes: 64 << 10}
}

// readiness returns a handler that reports not ready while the service stops.
func (s *Service) readiness(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && !s.serving.Load() {
			reject(w, http.StatusServiceUnavailable, "the coordinator is stopping")
			return
		}
		h.ServeHTTP(w, r)
	})
}
