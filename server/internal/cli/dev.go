package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/api/v3/version"

	"github.com/interlock-dev/interlock/server/embedded"
)

// devStart is when a slow start of the development server is reported; tests change it.
var devStart = 20 * time.Second

// startPatience bounds the end of a start after a signal.
const startPatience = time.Second

var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

type devFlags struct {
	embedded.Options
	temp bool
}

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	c := &cobra.Command{
		Use: "dev", Short: "Start a lock service on this machine, for development", Args: noArgs,
		Example: `  interlock dev                        keeps its data between runs
  interlock dev --temp                 forgets everything at the end
  interlock dev --listen 127.0.0.1:0   on any free port; the first that runs is found by other commands`,
		Long: `It runs one etcd node inside this process, for any etcd client. It listens on
loopback only, because it has neither passwords nor TLS. Ctrl-C stops it; its data
is kept for the next start. Do not use it in production: a single node is a single
point of failure.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.backend != "" {
				return usage("interlock dev runs its own etcd; leave out --backend")
			}
			signals := make(chan os.Signal, 1)
			subscribe(signals, stopSignals) // until the process ends, so that no signal prevents the clean-up
			signal.Ignore(syscall.SIGPIPE)  // messages that nobody reads do not end the server
			return a.dev(c.Context(), f, signals)
		},
	}
	c.Flags().StringVar(&f.Listen, "listen", defaultListen, "`host:port` for clients, loopback only; port 0 picks a free one")
	c.Flags().StringVar(&f.DataDir, "data-dir", "", "where to keep data (default: interlock/dev in the user's state directory)")
	c.Flags().BoolVar(&f.temp, "temp", false, "keep data in a temporary directory and remove it at the end")
	return c
}

func (a *app) dev(ctx context.Context, f devFlags, signals <-chan os.Signal) (err error) {
	var remove func()
	if f.DataDir, remove, err = f.directory(); err != nil {
		return err
	}
	defer remove()
	messages := newMessageQueue(a.err)
	defer messages.close()
	f.Log = a.sayingTo(messages).warnings()
	begun := time.Now()
	server, err := a.startUntil(ctx, signals, f.Options)
	switch {
	case err != nil:
		return devError(err)
	case server == nil:
		return nil
	}
	record := devRecord{PID: os.Getpid(), Endpoint: server.Endpoint(), DataDir: f.DataDir}
	found := a.announce(record)
	defer record.remove()
	a.printReady(record, found, time.Since(begun))
	return serveUntil(signals, server)
}

// startUntil starts the server. If a signal comes first, it returns nil, at the latest after
// startPatience: etcd cannot be interrupted while it restores its data, and ends with the process.
func (a *app) startUntil(ctx context.Context, signals <-chan os.Signal, o embedded.Options) (*embedded.Server, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(devStart, func() {
		a.say("etcd is still starting, as after an unclean end or on a slow disk; its log is %s", embedded.LogFile(o.DataDir))
	}).Stop()
	type result struct {
		server *embedded.Server
		err    error
	}
	started := make(chan result, 1)
	go func() {
		server, err := embedded.Start(ctx, o)
		started <- result{server, err}
	}()
	select {
	case r := <-started:
		return r.server, r.err
	case <-signals:
	}
	cancel()
	select {
	case r := <-started:
		if r.err == nil {
			r.server.Close()
		}
	case <-time.After(startPatience):
	}
	return nil, nil
}

// announce registers this server for other commands, unless they find a running
// one: a second server must not redirect commands that use the first. It reports
// whether commands find this server.
func (a *app) announce(r devRecord) (found bool) {
	if other, ok := findDev(); ok && other.Endpoint != r.Endpoint {
		a.say("other commands still use the server of process %d at %s; for this one use --backend etcd://%s",
			other.PID, other.Endpoint, r.Endpoint)
		return false
	}
	if err := r.write(); err != nil {
		a.say("warning: other commands will not find this server by themselves (%v); use --backend etcd://%s", err, r.Endpoint)
		return false
	}
	return true
}

// directory returns the data directory, and how to remove it.
func (f devFlags) directory() (dir string, remove func(), err error) {
	switch {
	case f.temp && f.DataDir != "":
		return "", nil, usage("--temp and --data-dir exclude each other")
	case f.temp:
		dir, err = os.MkdirTemp("", "interlock-dev-")
		return dir, func() { removeAll(dir) }, err
	case f.DataDir != "":
		dir, err = filepath.Abs(f.DataDir)
	default:
		if dir, err = stateDir(); err != nil {
			return "", nil, fail(exitConfig, "%w", err)
		}
		dir = filepath.Join(dir, "dev")
	}
	return dir, func() {}, err
}

// removeAll removes a directory to which a stopping server may still write: it
// retries for about a second.
func removeAll(dir string) {
	for range 20 {
		if os.RemoveAll(dir) == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// devError adds the next step to an error of the server's start.
func devError(err error) error {
	var address *embedded.AddressError
	var inUse *embedded.InUseError
	other, running := findDev()
	switch {
	case errors.As(err, &inUse) && inUse.Running.Endpoint != "":
		return fail(exitFailed, "process %d already runs a development server on %s, at %s: use that one, or start another with --data-dir or --temp, and --listen",
			inUse.Running.PID, inUse.DataDir, inUse.Running.Endpoint)
	case errors.As(err, &address) && running && other.Endpoint == address.Listen:
		return fail(exitFailed, "process %d already runs a development server at %s: use that one, or start another with --listen",
			other.PID, other.Endpoint)
	case errors.As(err, &address) && errors.Is(err, syscall.EADDRINUSE):
		return fail(exitFailed, "%s is taken by another program: choose another port with --listen (127.0.0.1:0 picks a free one)", address.Listen)
	case errors.As(err, &address):
		return usage("cannot listen on %s: %w", address.Listen, address.Err)
	}
	return fail(exitFailed, "%w", err)
}

func (a *app) printReady(r devRecord, found bool, took time.Duration) {
	var flag text
	if !found {
		flag = " " + command("--backend", "etcd://"+r.Endpoint)
	}
	a.serves(serving{r.Endpoint, r.DataDir}, line(`interlock dev: etcd %s on %s, ready in %.2f s
data in %s

Try, in another terminal:
  %[5]s lock demo%[6]s -- sleep 30
  %[5]s locks show demo%[6]s
  etcdctl --endpoints=%[2]s get --prefix ""

Ctrl-C stops it.
`, etcd.Version, r.Endpoint, took.Seconds(), r.DataDir, command(a.program), flag))
}

// serveUntil blocks until a signal or the end of etcd, and stops the server. A
// second signal during the stop ends the wait: the server then ends with the
// process.
func serveUntil(signals <-chan os.Signal, server *embedded.Server) error {
	select {
	case err := <-server.Err():
		server.Close()
		return fail(exitFailed, "etcd stopped by itself: %v", err)
	case err := <-server.Failed(): // no Close: etcd cannot write its data
		return fail(exitFailed, "etcd has failed: %w; is the disk full?", err)
	case <-signals:
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.Close()
	}()
	select {
	case <-stopped:
		return nil
	case s := <-signals:
		number, _ := s.(syscall.Signal)
		return &signalled{number}
	}
}
