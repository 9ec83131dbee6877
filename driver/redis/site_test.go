package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// site is where one test of a suite runs. Several tests can share its server, each with a
// prefix of its own for its names.
type site struct {
	server *testbed.Server
	prefix string
}

// sites gives a test its site: one of its own, if it breaks the server itself.
type sites func(t *testing.T, exclusive bool) site

// alone gives each test a server of its own.
func alone(extra ...string) sites {
	return func(t *testing.T, _ bool) site { return site{server: testbed.Redis(t, extra...)} }
}

// durable is alone on a server that loses nothing by a crash.
var durable = alone("--appendonly", "yes", "--appendfsync", "always")

// led is the site with a path of its own for each D.
func led[D comparable](at site) *paths.Server[D] { return paths.New[D](at.server) }

// through connects by a path, for the time of the test.
func (at site) through(t testing.TB, path *testbed.Proxy) (rueidis.Client, error) {
	client, err := Dial("redis://" + path.Addr())
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

// dialed is through that must succeed.
func (at site) dialed(t testing.TB, path *testbed.Proxy) rueidis.Client {
	t.Helper()
	return dial(t, path.Addr())
}

// beside connects past every path.
func (at site) beside(t testing.TB) rueidis.Client {
	t.Helper()
	return dial(t, at.server.Addr())
}
