package testbed

import (
	"fmt"
	"syscall"
)

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
