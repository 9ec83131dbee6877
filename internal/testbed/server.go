package testbed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Server is one running server. It keeps its address permanently, and its data until
// it is wiped.
type Server struct {
	tb    testing.TB
	kind  kind
	extra []string
	dir   string // holds data/ and log

	mu    sync.Mutex
	ports []*port
	proc  *child // nil before the first start
}

// kind is the part that differs between servers.
type kind struct {
	name  string
	url   string // a format for the address
	ports int
	cred  *syscall.Credential // nil means our own user
	// prepare fills an empty data directory; nil leaves it empty.
	prepare func(data string) error
	// command returns the program and its arguments.
	command func(data string, ports []*port) []string
	// ready checks once whether the server serves.
	ready func(addr string) error
	// archives is true of a server in Java that has loaded its classes when it is ready.
	archives bool
	// buried frees what a killed server leaves outside its data.
	buried func(data string)
}

// launch runs a server until the test ends.
func launch(tb testing.TB, k kind, extra []string) *Server {
	tb.Helper()
	dir, err := place(k.name)
	if err != nil {
		tb.Fatalf("%s: %v", k.name, err)
	}
	s := &Server{tb: tb, kind: k, extra: extra, dir: dir}
	tb.Cleanup(s.close)
	if err := s.firstStart(); err != nil {
		tb.Fatalf("%s: start: %v%s", k.name, err, s.tail())
	}
	return s
}

// firstStart tries again with other ports if another process takes one before the
// server does.
func (s *Server) firstStart() (err error) {
	for range 3 {
		if err = s.takePorts(); err != nil {
			return err
		}
		if err = s.emptyData(); err != nil {
			return err
		}
		if s.kind.archives {
			err = s.archiveClasses()
		}
		if err == nil {
			err = s.start()
		}
		if err == nil {
			return nil
		}
		s.kill()
	}
	return err
}

func (s *Server) takePorts() error {
	s.freePorts()
	for range s.kind.ports {
		p, err := takePort()
		if err != nil {
			return err
		}
		s.ports = append(s.ports, p)
	}
	return nil
}

func (s *Server) freePorts() {
	for _, p := range s.ports {
		p.free()
	}
	s.ports = nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

func (s *Server) emptyData() error {
	if err := os.RemoveAll(s.data()); err != nil {
		return err
	}
	if err := os.Mkdir(s.data(), 0o700); err != nil {
		return err
	}
	if s.kind.prepare == nil {
		return nil
	}
	return s.kind.prepare(s.data())
}

func (s *Server) start() error {
	return s.run(append(s.kind.command(s.data(), s.ports), s.extra...))
}

// run starts a command and returns when it serves.
func (s *Server) run(argv []string) error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.data(), log, log
	if s.proc, err = spawn(cmd, s.dir, s.kind.cred); err != nil {
		s.proc = nil
		return err
	}
	return s.waitReady()
}

func (s *Server) waitReady() error {
	var err error
	for range looks(bound) {
		if s.proc.ended() {
			return fmt.Errorf("it ended by itself: %v", s.proc.cmd.ProcessState)
		}
		if err = s.kind.ready(s.ports[0].addr()); err == nil {
			return nil
		}
	}
	return fmt.Errorf("not ready within %v: %w", bound, err)
}

func (s *Server) kill() error {
	if s.proc == nil {
		return nil
	}
	err := s.proc.killAll()
	if s.kind.buried != nil {
		s.kind.buried(s.data())
	}
	return err
}

func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tb.Failed() {
		s.tb.Logf("%s on %v%s", s.kind.name, s.ports, s.tail())
	}
	if err := s.kill(); err != nil {
		s.tb.Errorf("%s: end: %v", s.kind.name, err)
	}
	s.freePorts()
	if err := os.RemoveAll(s.dir); err != nil {
		s.tb.Errorf("%s: clean up: %v", s.kind.name, err)
	}
}

// tail returns the end of the server's log, for failure messages.
func (s *Server) tail() string { return tailOf(s.logFile()) }

func tailOf(file string) string {
	const most = 4 << 10
	text, _ := os.ReadFile(file)
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return "; the end of its log:\n" + string(text)
}

// Addr returns the address for clients, "127.0.0.1:port".
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[0].addr()
}

// URL returns Addr as a connection string. Redis: "redis://…", etcd: "http://…",
// PostgreSQL: "postgres://postgres@…/postgres?sslmode=disable".
func (s *Server) URL() string { return fmt.Sprintf(s.kind.url, s.Addr()) }

// PID returns the process id of the server; it changes with Restart and Wipe.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid()
}

// Kill ends the server and its children with SIGKILL, as a crash would, and
// returns when they are gone. It has no effect on a server that has ended.
func (s *Server) Kill() {
	s.tb.Helper()
	s.do("kill", s.kill)
}

// Restart kills the server if it runs, starts it on its data, and returns when it
// answers. The data that Redis and etcd have after a restart depends on their
// options.
func (s *Server) Restart() {
	s.tb.Helper()
	s.do("restart", func() error {
		if err := s.kill(); err != nil {
			return err
		}
		return s.start()
	})
}

// Wipe kills the server, empties its data, starts it again, and returns when it
// answers.
func (s *Server) Wipe() {
	s.tb.Helper()
	s.do("wipe", func() error {
		if err := s.kill(); err != nil {
			return err
		}
		if err := s.emptyData(); err != nil {
			return err
		}
		return s.start()
	})
}

// Pause stops the server and its children with SIGSTOP and returns when they have
// stopped. Connections stay open, and the server answers nothing.
func (s *Server) Pause() {
	s.tb.Helper()
	s.do("pause", func() error {
		if s.proc.ended() {
			return fmt.Errorf("it is not running: %v", s.proc.cmd.ProcessState)
		}
		// The parent first, so that it cannot start more.
		if err := s.proc.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return signalMarked(s.dir, syscall.SIGSTOP, stopped)
	})
}

// Resume continues a paused server.
func (s *Server) Resume() {
	s.tb.Helper()
	s.do("resume", func() error { return signalMarked(s.dir, syscall.SIGCONT, running) })
}

func (s *Server) do(what string, action func() error) {
	s.tb.Helper()
	s.mu.Lock()
	err := action()
	s.mu.Unlock() // before Fatalf, whose clean-up locks it again
	if err != nil {
		s.tb.Fatalf("%s: %s: %v%s", s.kind.name, what, err, s.tail())
	}
}

// port is a TCP port of 127.0.0.1 that no other testbed chooses until it is
// freed.
type port struct {
	number int
	claim  net.PacketConn
}

// The ports are below those that systems assign to outgoing connections (from 32768 on Linux,
// 49152 elsewhere). A port in that range could be taken while its server is down. Even a client
// that reconnects to it could take it, and be connected to itself.
const lowest, highest = 20000, 32700

// takePort finds a free port. It reserves the UDP port of the same number until free,
// which excludes other test processes. A server needs the TCP port only while it
// runs.
func takePort() (*port, error) {
	var failures []error
	for range 100 {
		n := lowest + rand.IntN(highest-lowest)
		p, err := tryPort(n)
		if err == nil {
			return p, nil
		}
		failures = append(failures, err)
	}
	return nil, fmt.Errorf("find a free port on 127.0.0.1: %w", errors.Join(failures...))
}

// reserve takes a port until the end of the test.
func reserve(tb testing.TB, server string) *port {
	tb.Helper()
	p, err := takePort()
	if err != nil {
		tb.Fatalf("%s: %v", server, err)
	}
	tb.Cleanup(p.free)
	return p
}

func tryPort(n int) (*port, error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
	claim, err := net.ListenPacket("udp4", addr)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		claim.Close()
		return nil, err
	}
	l.Close()
	return &port{n, claim}, nil
}

func (p *port) free() { p.claim.Close() }

func (p *port) String() string { return strconv.Itoa(p.number) }

func (p *port) addr() string { return net.JoinHostPort("127.0.0.1", p.String()) }
