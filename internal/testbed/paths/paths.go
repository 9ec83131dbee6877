// Package paths connects each driver of a test to a real server over its own path.
// It breaks server and paths as the suites of driver/drivertest request. It does
// not inject faults inside a driver, such as a push that arrives and is ignored. It
// does not affect clients that connect to the server directly.
//
//	type backend struct {
//		*paths.Server[driver.Fenced] // Crash, and all faults
//		operator                     // bypasses them
//	}
//
//	func (b *backend) Open(t *testing.T) (driver.Fenced, error) {
//		return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
//			return mine.Open(t.Context(), dial(t, path.Addr()), nil)
//		})
//	}
//
//	func (b *backend) Faults() drivertest.Faults { return b.Server }
package paths

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Server is a server that each D, a driver or a fence, reaches over its own path.
// Its methods end the test by tb.Fatal if they fail, so call them on the test's own
// goroutine.
type Server[D comparable] struct {
	server *testbed.Server
	led    map[D]*testbed.Proxy
	broken []fault // the faults of all paths, also of the next one
}

type fault func(*testbed.Proxy)

// New returns a Server for a running server, without any path.
func New[D comparable](server *testbed.Server) *Server[D] {
	return &Server[D]{server: server, led: map[D]*testbed.Proxy{}}
}

// Lead opens a D over a new path, which has the faults of the others, and is cut
// while the server is killed or paused. If open fails, its path keeps these faults.
// If D has a Close like that of a driver, it is called at the end of the test, and
// its error fails the test.
func (s *Server[D]) Lead(t testing.TB, open func(path *testbed.Proxy) (D, error)) (D, error) {
	t.Helper()
	path := testbed.NewProxy(t, s.server.Addr())
	for _, damage := range s.broken {
		damage(path)
	}
	d, err := open(path)
	if err != nil {
		return d, err
	}
	closeAfter(t, d)
	s.led[d] = path
	return d, nil
}

func closeAfter(t testing.TB, d any) {
	if c, ok := d.(interface{ Close(context.Context) error }); ok {
		testbed.CloseAfter(t, c)
	}
}

// Crash cuts d's path permanently: Heal does not affect it.
func (s *Server[D]) Crash(t *testing.T, d D) {
	t.Helper()
	path, ok := s.led[d]
	if !ok {
		t.Fatal("crash: no path leads to it, or it has crashed before")
	}
	path.Cut()
	delete(s.led, d)
}

// Backend is the backend of a suite that opens a D at an address. It implements
// drivertest.StoreBackend and, for locks, half of drivertest.Backend.
type Backend[D comparable] struct {
	*Server[D]
	at func(t *testing.T, addr string) (D, error)
}

// At returns a Backend. open releases with t.Cleanup what its D does not close.
func At[D comparable](server *testbed.Server, open func(t *testing.T, addr string) (D, error)) Backend[D] {
	return Backend[D]{New[D](server), open}
}

// Open opens a D over its own path, which Faults can break.
func (b Backend[D]) Open(t *testing.T) (D, error) {
	return b.Lead(t, func(path *testbed.Proxy) (D, error) {
		d, err := b.open(t, path.Addr())
		t.Cleanup(path.Close) // runs before the clean-up of open: a client may wait for an answer
		return d, err
	})
}

// Beside opens a D over a path without faults. It is closed as by Lead.
func (b Backend[D]) Beside(t *testing.T) (D, error) {
	d, err := b.open(t, b.server.Addr())
	if err == nil {
		closeAfter(t, d)
	}
	return d, err
}

func (b Backend[D]) open(t *testing.T, addr string) (d D, err error) {
	if d, err = b.at(t, addr); err != nil {
		return *new(D), err // not a typed nil
	}
	return d, nil
}

// Faults returns the faults of the server and the paths.
func (b Backend[D]) Faults() drivertest.Faults { return b.Server }

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
