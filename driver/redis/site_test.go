package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// site is where one test of a suite runs. Several tests can share its server, each with
// its own prefix for names.
type site struct {
	server *testbed.Server
	prefix string
}

// sites gives a test its site: one of its own, if it breaks the server itself.
type sites func(t *testing.T, exclusive bool) site

// alone gives each test its own server.
func alone(extra ...string) sites {
	return func(t *testing.T, _ bool) site { return site{server: testbed.Redis(t, extra...)} }
}

// durable is alone on a server that loses nothing in a crash.
var durable = alone("--appendonly", "yes", "--appendfsync", "always")

// sharing gives each test a prefix on server, or a durable server of its own if it is
// exclusive.
func sharing(server *testbed.Server) sites {
	return func(t *testing.T, exclusive bool) site {
		if exclusive {
			return durable(t, true)
		}
		return site{server: server, prefix: t.Name() + "/"}
	}
}

// led returns the site with its own path for each D.
func led[D comparable](at site) *paths.Server[D] { return paths.New[D](at.server) }

// suiteBackend is a store for its suite, with its own path for each opening.
type suiteBackend[S comparable] struct {
	*paths.Server[S]
	at     site
	create func(client rueidis.Client, prefix string) S
}

// suiteBackends returns a function that starts those of a suite.
func suiteBackends[S comparable](in sites, create func(client rueidis.Client, prefix string) S) func(*testing.T, bool) drivertest.StoreBackend[S] {
	return func(t *testing.T, exclusive bool) drivertest.StoreBackend[S] {
		at := in(t, exclusive)
		return &suiteBackend[S]{led[S](at), at, create}
	}
}

func (b *suiteBackend[S]) Open(t *testing.T) (S, error) {
	return b.Lead(t, func(path *testbed.Proxy) (S, error) { return b.create(b.at.dialed(t, path), b.at.prefix), nil })
}

func (b *suiteBackend[S]) Beside(t *testing.T) (S, error) {
	return b.create(b.at.beside(t), b.at.prefix), nil
}

func (b *suiteBackend[S]) Faults() drivertest.Faults { return b.Server }

// through connects by a path until the test ends.
func (at site) through(t testing.TB, path *testbed.Proxy) (rueidis.Client, error) {
	client, err := Dial("redis://" + path.Addr())
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

// dialed is through, but must succeed.
func (at site) dialed(t testing.TB, path *testbed.Proxy) rueidis.Client {
	t.Helper()
	return dial(t, path.Addr())
}

// beside connects without a path.
func (at site) beside(t testing.TB) rueidis.Client {
	t.Helper()
	return dial(t, at.server.Addr())
}
