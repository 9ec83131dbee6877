// Package coordinate runs a coordinator of transactions as a service: it owns its part
// of the shards of a journal, beside others of its kind, and takes requests over HTTP.
// It decides nothing: package txn/web and what stands below it do.
package coordinate

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/own"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/web"
)

// Config is what a service is.
type Config struct {
	Backend backend.Target // of the journal, and of the claims on its shards
	Journal string         // its name there; empty is the default
	Shards  int            // of the journal; all services on it have the same number
	TTL     time.Duration  // of the claims
	Prefix  string         // of their names
	Web     web.Options
	Token   string // that a request has to show, as a bearer; empty is none
	// Tell is told what goes wrong beside the transactions' own calls.
	Tell func(error)
}

// group is the name under which services share shards.
const group = "interlock.coordinators"

// shutdown bounds how long requests that are under way may take when the service ends.
const shutdown = 10 * time.Second

// longest is for how long a request may wait for a transaction's end.
const longest = 10 * time.Minute

// Service is one that runs.
type Service struct {
	config      Config
	coordinator *coordinator.Coordinator
	web         *web.Service
	locks       *backend.Locks
	closers     []func()
}

// Open connects to the backend. The context bounds the opening only.
func Open(ctx context.Context, c Config) (_ *Service, err error) {
	s := &Service{config: c}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	store, disconnect, err := c.Backend.Journal(ctx, c.Journal)
	if err != nil {
		return nil, err
	}
	s.closing(disconnect)
	j, err := journal.New(store, &journal.Options{Shards: c.Shards})
	if err != nil {
		return nil, err
	}
	s.closing(func() { _ = j.Close() })
	s.coordinator, err = coordinator.New(j, &coordinator.Options{Hooks: &observe.Coordinator{
		Failed: func(e observe.CoordinatorFailed) { c.Tell(e.Err) },
	}})
	if err != nil {
		return nil, err
	}
	if s.web, err = web.New(s.coordinator, &c.Web); err != nil {
		return nil, err
	}
	s.locks, err = c.Backend.Locks(ctx, backend.Options{TTL: c.TTL, Prefix: c.Prefix})
	if err != nil {
		return nil, err
	}
	s.closing(func() { _ = s.locks.Close(context.Background()) }) // what is held expires
	return s, nil
}

func (s *Service) closing(f func()) { s.closers = append(s.closers, f) }

// Close disconnects; call it after Serve has returned.
func (s *Service) Close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// Serve takes requests on l, which it closes, and drives what it owns, until ctx ends
// or one of that cannot go on.
func (s *Service) Serve(ctx context.Context, l net.Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := &http.Server{Handler: trusted(s.config.Token, pageless(s.web)), BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, WriteTimeout: longest + time.Minute}
	var work sync.WaitGroup
	work.Go(func() { stop(s.drive(ctx)) })
	work.Go(func() { stop(s.web.Watch(ctx)) })
	work.Go(func() { stop(server.Serve(l)) })
	<-ctx.Done()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer cancel()
	if server.Shutdown(bound) != nil {
		_ = server.Close() // whoever still waits is told by that
	}
	s.web.Close(bound)
	work.Wait()
	return context.Cause(ctx)
}

// drive owns shards and drives what is in them. Services share them where the backend
// keeps what a group needs; elsewhere one has all, and the others stand by.
func (s *Service) drive(ctx context.Context) error {
	values, disconnect, err := s.config.Backend.Values(ctx, s.config.Prefix)
	if err != nil {
		return err
	}
	defer disconnect()
	if values == nil {
		return s.alone(ctx)
	}
	g, err := own.Join(ctx, s.locks, values, group, own.Layout{Partitions: s.config.Shards}, &own.Options{
		Work:  func(ctx context.Context, p own.Partition) error { return s.coordinator.Serve(ctx, p.Claim, p.Index) },
		Hooks: &observe.Own{Failed: func(e observe.OwnFailed) { s.config.Tell(e.Err) }},
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer cancel()
	return errors.Join(context.Cause(ctx), g.Leave(bound))
}

// alone drives everything under one lock, again and again.
func (s *Service) alone(ctx context.Context) error {
	locks, err := lock.NewFenced(s.locks, nil)
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close(context.WithoutCancel(ctx)) }() // what is held expires
	for ctx.Err() == nil {
		err := locks.Do(ctx, group, func(ctx context.Context, c interlock.Claim) error { return s.coordinator.Run(ctx, c) })
		if ctx.Err() == nil && err != nil {
			s.config.Tell(err)
		}
		pause(ctx, time.Second)
	}
	return context.Cause(ctx)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
