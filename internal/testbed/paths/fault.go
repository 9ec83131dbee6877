package paths

import (
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// Kill ends the server with SIGKILL.
func (s *Server[D]) Kill() {
	s.down()
	s.server.Kill()
}

// Restart starts the server on its data, and heals the paths.
func (s *Server[D]) Restart() {
	s.server.Restart()
	s.Heal()
}

// Wipe kills the server, starts it on an empty data directory, and heals the
// paths.
func (s *Server[D]) Wipe() {
	s.server.Wipe()
	s.Heal()
}

// Pause stops the server with SIGSTOP.
func (s *Server[D]) Pause() {
	s.down()
	s.server.Pause()
}

// Resume continues a paused server and heals the paths.
func (s *Server[D]) Resume() {
	s.server.Resume()
	s.Heal()
}

// down makes new clients fail immediately while the server is down. Otherwise they
// might wait for longer than a test.
func (s *Server[D]) down() { s.broken = append(s.broken, (*testbed.Proxy).Cut) }

// Cut drops all bytes on all paths, in both directions, without closing connections,
// and refuses new ones.
func (s *Server[D]) Cut() { s.damage((*testbed.Proxy).Cut) }

// DropReplies forwards requests and drops all bytes of the replies.
func (s *Server[D]) DropReplies() { s.damage((*testbed.Proxy).DropReplies) }

// Delay delays each byte by oneWay, in each direction; 0 ends that.
func (s *Server[D]) Delay(oneWay time.Duration) {
	s.damage(func(path *testbed.Proxy) { path.Delay(oneWay) })
}

// Heal ends the faults of the paths and closes the connections from which bytes may
// be missing. It does not restart a server.
func (s *Server[D]) Heal() {
	s.broken = nil
	s.each((*testbed.Proxy).Heal)
}

func (s *Server[D]) damage(f fault) {
	s.broken = append(s.broken, f)
	s.each(f)
}

func (s *Server[D]) each(do fault) {
	for _, path := range s.led {
		do(path)
	}
}
