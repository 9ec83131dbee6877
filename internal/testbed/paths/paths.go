// Package paths leads each driver of a test to a real server by a path of its
// own, and breaks server and paths as the suites of driver/drivertest ask. It
// does not break what runs inside a driver, such as a push that arrives and is
// overlooked, and it does not touch clients that go to the server directly.
//
//	type backend struct {
//		*paths.Server[driver.Fenced] // Crash, and all faults
//		operator                     // goes past them
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

	"github.com/interlock-dev/interlock/internal/testbed"
)

// Server is a server that each D, a driver or a fence, reaches by a path of its
// own. Its methods end the test by tb.Fatal when they cannot do what they say,
// so they belong on the test's own goroutine.
type Server[D comparable] struct {
	server *testbed.Server
	led    map[D]*testbed.Proxy
	broken []fault // what is wrong with the paths, and so with the next one
}

type fault func(*testbed.Proxy)

// New makes one of a server that runs, without any path to it.
func New[D comparable](server *testbed.Server) *Server[D] {
	return &Server[D]{server: server, led: map[D]*testbed.Proxy{}}
}

// Lead opens a D at the end of a new path, which is as broken as the others are
// at the moment, and cut while the server is killed or paused. What could not be
// opened has its path as it was, for good. What was opened is closed with the
// test if it has a Close like that of a driver; an error of that fails the test.
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
	c, ok := d.(interface{ Close(context.Context) error })
	if !ok {
		return
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// Crash cuts d's path for good: no Heal reaches it any more.
func (s *Server[D]) Crash(t *testing.T, d D) {
	t.Helper()
	path, ok := s.led[d]
	if !ok {
		t.Fatal("crash: no path leads to it, or it has crashed before")
	}
	path.Cut()
	delete(s.led, d)
}
