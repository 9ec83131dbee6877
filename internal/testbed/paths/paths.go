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
