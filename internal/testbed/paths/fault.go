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

// Resume lets a paused server go on, and heals the paths.
func (s *Server[D]) Resume() {
	s.server.Resume()
	s.Heal()
}

// down makes a client that comes while nobody answers fail at once, where it
// might wait for longer than a test can.
func (s *Server[D]) down() { s.broken = append(s.broken, (*testbed.Proxy).Cut) }

// Cut drops every byte on every path, in both directions and without closing
// connections, and refuses new ones.
func (s *Server[D]) Cut() { s.damage((*testbed.Proxy).Cut) }

// DropReplies lets requests through and drops every byte of the answers.
func (s *Server[D]) DropReplies() { s.damage((*testbed.Proxy).DropReplies) }

// Delay holds every byte back for so long, in each direction; 0 ends that.
func (s *Server[D]) Delay(oneWay time.Duration) {
	s.damage(func(path *testbed.Proxy) { path.Delay(oneWay) })
}

// Heal ends what is wrong with the paths, and closes the connections from which
// bytes may be missing. It does not bring back a server that is down.
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
