// Package embedded runs one etcd node inside the process, for development and
// for tests. It does not make anything highly available: the node is alone,
// listens on loopback only, has neither authentication nor TLS, and what it
// stores is as durable as the one disk it stands on.
//
//	s, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Listen: "127.0.0.1:7460"})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	d, err := etcd.Open(ctx, s.Client(), nil) // package driver/etcd
//
// Any other etcd client works as well: etcdctl --endpoints=$(s.Endpoint()).
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
)

// A node alone has nobody to wait for: these two only decide how soon it elects
// itself, and with it the shortest lease it grants (one second).
const (
	heartbeat = 10 * time.Millisecond
	election  = 100 * time.Millisecond
)

// Options says where a node lives.
type Options struct {
	// DataDir is where it keeps its data, its log and its lock file; created if
	// it is missing. Required.
	DataDir string
	// Listen is the host and port that etcd clients dial. The host must be a
	// loopback address or "localhost"; port 0 picks a free one. Required.
	Listen string
	// Quota is the most bytes that the file of the data may have, before etcd refuses
	// writes; 0 means [DefaultQuota]. Options.Log and [Server.Status] warn before.
	Quota int64
	// Compact is for how long etcd remembers former values, for watches that come back;
	// 0 means [DefaultCompact].
	Compact time.Duration
	// Check is how often the room that the data takes is looked at; 0 means [DefaultCheck].
	Check time.Duration
	// Log receives warnings; nil means slog.Default.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Quota = cmp.Or(o.Quota, DefaultQuota)
	o.Compact = cmp.Or(o.Compact, DefaultCompact)
	o.Check = cmp.Or(o.Check, DefaultCheck)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// A Server is a running node. Its methods are safe for concurrent use.
type Server struct {
	node     *embed.Etcd
	client   *clientv3.Client
	endpoint string
	lock     *dirLock
	options  Options
	events   *eventLog
	close    sync.Once
	closing  chan struct{}
	kept     chan struct{} // closed when nobody looks after the room any more; nil before
}

// Start starts a node and waits until it serves, which takes about a tenth of a
// second, or until ctx ends. It returns an [*InUseError] when another process
// runs on the same data, an [*AddressError] when Listen cannot be used, and
// leaves nothing running when it fails.
func Start(ctx context.Context, o Options) (*Server, error) {
	listen, err := loopback(o.Listen)
	if err != nil {
		return nil, err
	}
	if o.DataDir == "" {
		return nil, errors.New("embedded: start etcd: no data directory was given")
	}
	if err := privateDir(o.DataDir); err != nil {
		return nil, err
	}
	lock, err := lockDir(o.DataDir)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s := &Server{lock: lock, options: o, closing: make(chan struct{})}
	if s.events, err = openEventLog(o.DataDir); err != nil {
		s.Close()
		return nil, err
	}
	cfg := config(o.DataDir, listen)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(s.events.logger())
	cfg.QuotaBackendBytes = o.Quota
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", o.Compact.String()
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{endStreams(s.closing)}
	if err := s.run(ctx, cfg); err != nil {
		s.Close()
		return nil, err
	}
	s.kept = make(chan struct{})
	go s.keepSpace()
	return s, nil
}

// run starts the node and tells the lock file where it is.
func (s *Server) run(ctx context.Context, cfg *embed.Config) error {
	node, err := startEtcd(cfg)
	if err != nil {
		return startError(cfg, err)
	}
	s.node = node
	s.events.started.Store(true)
	select {
	case <-node.Server.ReadyNotify():
	case err := <-node.Err():
		return fmt.Errorf("embedded: start etcd on %s: %w", cfg.Dir, err)
	case err := <-s.events.failed:
		return startError(cfg, err)
	case <-ctx.Done():
		return fmt.Errorf("embedded: start etcd on %s: %w", cfg.Dir, context.Cause(ctx))
	}
	s.endpoint = node.Clients[0].Addr().String()
	s.client = v3client.New(node.Server)
	return s.lock.write(Running{PID: os.Getpid(), Endpoint: s.endpoint})
}

// startEtcd returns as an error what etcd would end the process with, such as a full
// disk.
func startEtcd(cfg *embed.Config) (node *embed.Etcd, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			fatal, ok := reason.(fatalError)
			if !ok {
				panic(reason)
			}
			node, err = nil, fatal.error
		}
	}()
	return embed.StartEtcd(cfg)
}

func startError(cfg *embed.Config, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return &AddressError{Listen: cfg.ListenClientUrls[0].Host, Err: err}
	}
	return fmt.Errorf("embedded: start etcd on %s (its log is %s): %w", cfg.Dir, LogFile(cfg.Dir), err)
}

// Client talks to the node without a network. It lives as long as the node and
// is not to be closed.
func (s *Server) Client() *clientv3.Client { return s.client }

// Endpoint is the host:port at which other processes reach the node.
func (s *Server) Endpoint() string { return s.endpoint }

// Err reports when the node stops by itself, with the reason.
func (s *Server) Err() <-chan error { return s.node.Err() }

// Failed reports what the node could not go on after, such as a full disk. It then
// answers nothing any more, and Close may take long.
func (s *Server) Failed() <-chan error { return s.events.failed }

// Close stops the node and waits for it. Requests under way are given a few
// seconds; open watches and keep-alives end at once. Later calls do nothing.
func (s *Server) Close() {
	s.close.Do(func() {
		close(s.closing)
		if s.kept != nil {
			<-s.kept
		}
		if s.client != nil {
			_ = s.client.Close() // an in-process client has no connection that could fail to close
		}
		if s.node != nil {
			s.node.Close()
		}
		if s.events != nil {
			s.events.close()
		}
		s.lock.release()
	})
}

// LogFile is where a node on dataDir writes what etcd has to say.
func LogFile(dataDir string) string { return filepath.Join(dataDir, "etcd.log") }
