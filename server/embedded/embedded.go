// Package embedded runs one etcd node inside the process, for development and tests. It is not
// highly available: the node has no peers, and its data is as durable as its one disk. It listens
// on loopback only, and has neither authentication nor TLS.
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
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
)

// A single node waits for no other. These two only determine how soon it elects itself, and with
// it the shortest lease it grants (one second).
const (
	heartbeat = 10 * time.Millisecond
	election  = 100 * time.Millisecond
)

// Options configures a node.
type Options struct {
	// DataDir is the directory for its data, its log and its lock file. It is
	// created if it is missing. Required.
	DataDir string
	// Listen is the host and port that etcd clients dial. The host must be a
	// loopback address or "localhost"; port 0 picks a free one. Required.
	Listen string
	// Quota is the size in bytes of the data file at which etcd refuses writes; 0
	// means [DefaultQuota]. Options.Log and [Server.Status] warn before that.
	Quota int64
	// Compact is how long etcd keeps former values, for watches that reconnect; 0
	// means [DefaultCompact].
	Compact time.Duration
	// Check is the interval of checks of the data's size; 0 means [DefaultCheck].
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

// Server is a running node. Its methods are safe for concurrent use.
type Server struct {
	node     *embed.Etcd
	client   *clientv3.Client
	endpoint string
	lock     *dirLock
	options  Options
	events   *eventLog
	close    sync.Once
	closing  chan struct{}
	kept     chan struct{} // closed when keepSpace has ended; nil before it starts
}

// Start starts a node and waits until it serves, which takes about a tenth of a
// second, or until ctx ends. It returns an [*InUseError] if another process runs on
// the same data, and an [*AddressError] if Listen cannot be used. If it fails, it
// leaves nothing running. If etcd itself cannot continue, such as with a full disk or
// damaged data, the files and the port that it has opened stay open until the process
// ends.
func Start(ctx context.Context, o Options) (*Server, error) {
	listen, err := loopback(o.Listen)
	if err != nil {
		return nil, err
	}
	if o.DataDir == "" {
		return nil, errors.New("embedded: start etcd: no data directory was given")
	}
	if o.Quota < 0 || o.Compact < 0 || o.Check < 0 {
		return nil, fmt.Errorf("embedded: start etcd: a quota of %d, former values for %v, checks every %v: none may be negative", o.Quota, o.Compact, o.Check)
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
	if err := onPort(listen, func(listen string) error { return s.run(ctx, listen) }); err != nil {
		s.Close()
		return nil, err
	}
	s.kept = make(chan struct{})
	go s.keepSpace()
	return s, nil
}

// run starts the node at an address and writes that to the lock file.
func (s *Server) run(ctx context.Context, listen string) error {
	cfg := config(s.options.DataDir, listen)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(s.events.logger())
	cfg.QuotaBackendBytes = s.options.Quota
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", s.options.Compact.String()
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{endStreams(s.closing)}
	node, err := startEtcd(cfg, s.events.failed)
	if err != nil {
		return startError(cfg, err)
	}
	s.node = node
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

// onPort calls run with listen, in which it replaces port 0 by a free one, because the node
// advertises its address before it has one. If another program takes that port first, it
// picks another.
func onPort(listen string, run func(listen string) error) error {
	if _, port, err := net.SplitHostPort(listen); err != nil || port != "0" {
		return run(listen)
	}
	for tries := 1; ; tries++ {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return &AddressError{Listen: listen, Err: err}
		}
		free := l.Addr().String()
		if err := l.Close(); err != nil {
			return &AddressError{Listen: listen, Err: err}
		}
		if err := run(free); tries == ports || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
}

// ports is how many free ports a start tries.
const ports = 5

// startEtcd starts etcd in another goroutine. After a failure at which etcd would end the process,
// such as a full disk, that goroutine ends or waits for ever.
func startEtcd(cfg *embed.Config, failed <-chan error) (*embed.Etcd, error) {
	type result struct {
		node *embed.Etcd
		err  error
	}
	started, abandoned := make(chan result), make(chan struct{})
	go func() {
		node, err := embed.StartEtcd(cfg)
		select {
		case started <- result{node, err}:
		case <-abandoned:
			if node != nil {
				node.Close()
			}
		}
	}()
	select {
	case r := <-started:
		return r.node, r.err
	case err := <-failed:
		close(abandoned)
		return nil, err
	}
}

func startError(cfg *embed.Config, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return &AddressError{Listen: cfg.ListenClientUrls[0].Host, Err: err}
	}
	return fmt.Errorf("embedded: start etcd on %s (its log is %s): %w", cfg.Dir, LogFile(cfg.Dir), err)
}

// Client returns a client that reaches the node without a network. It lasts as long as
// the node. Do not close it.
func (s *Server) Client() *clientv3.Client { return s.client }

// Endpoint returns the host:port at which other processes reach the node.
func (s *Server) Endpoint() string { return s.endpoint }

// Err receives the reason if the node stops by itself.
func (s *Server) Err() <-chan error { return s.node.Err() }

// Failed receives a failure after which the node cannot continue, such as a full disk.
// It then answers no requests, and Close may take long.
func (s *Server) Failed() <-chan error { return s.events.failed }

// Close stops the node and waits for it. Requests in progress have a few seconds to
// finish; open watches and keep-alives end immediately. Later calls have no effect.
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

// LogFile returns the path of etcd's log of a node on dataDir.
func LogFile(dataDir string) string { return filepath.Join(dataDir, "etcd.log") }

// config returns the configuration of a single node that logs little.
func config(dataDir, listen string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "interlock"
	cfg.Dir = dataDir
	cfg.TickMs = uint(heartbeat.Milliseconds())
	cfg.ElectionMs = uint(election.Milliseconds())
	cfg.EnableGRPCGateway = false
	// A page in a browser on this machine reaches loopback, too. No origin is called
	// "none", and a foreign name that resolves to loopback is not in the whitelist.
	cfg.CORS = map[string]struct{}{"none": {}}
	cfg.HostWhitelist = map[string]struct{}{"localhost": {}, "127.0.0.1": {}, "::1": {}, "[::1]": {}}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		cfg.HostWhitelist[host] = struct{}{}
	}

	client := url.URL{Scheme: "http", Host: listen}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	// A single node has no peers that dial it; the name is only for its records.
	peer := url.URL{Scheme: "http", Host: "localhost:0"}
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return cfg
}

// AddressError reports why a listen address cannot be used.
type AddressError struct {
	Listen string
	Err    error
}

// Error returns the address and the reason.
func (e *AddressError) Error() string {
	return fmt.Sprintf("embedded: listen on %s: %v", e.Listen, e.Err)
}

// Unwrap returns the reason.
func (e *AddressError) Unwrap() error { return e.Err }

// loopback returns listen with "localhost" made numeric. It rejects an invalid address
// and one that other machines could reach.
func loopback(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", &AddressError{Listen: listen, Err: fmt.Errorf("not of the form host:port, such as 127.0.0.1:7460")}
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsLoopback() {
		return "", &AddressError{Listen: listen, Err: fmt.Errorf("only a loopback address is allowed, " +
			"because this etcd has neither passwords nor TLS and would serve anyone who reaches it")}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", &AddressError{Listen: listen, Err: fmt.Errorf("the port must be a number from 0 to 65535")}
	}
	return net.JoinHostPort(ip.String(), port), nil
}
