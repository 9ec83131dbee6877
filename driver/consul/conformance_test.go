package consul

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const suiteTTL = 3 * time.Second

// harness shares one server among the tests that do not break it.
func harness(t *testing.T) drivertest.Harness {
	shared := testbed.Shared(t, testbed.Consul)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			if exclusive {
				return start(t, borrow(t))
			}
			return start(t, shared)
		},
		TTL:        suiteTTL,
		Heartbeat:  paceOf(suiteTTL).quiet,
		DeadWaiter: 2 * time.Second, // Consul has no waiters, so this is for slow machines
		HandOvers:  300,
		Without:    drivertest.FIFO | drivertest.Queue | drivertest.Expiry,
	}
}

func TestFenced(t *testing.T)  { drivertest.RunFenced(t, harness(t)) }
func TestWatcher(t *testing.T) { t.Parallel(); drivertest.RunWatcher(t, harness(t)) }
func TestBreaker(t *testing.T) { t.Parallel(); drivertest.RunBreaker(t, harness(t)) }

// borrow returns a server for this test only. A start takes two seconds.
func borrow(t *testing.T) *testbed.Server {
	t.Helper()
	return testbed.Borrowed(t, testbed.Consul, func(server *testbed.Server) {
		operator := operate(server)
		defer operator.idle()
		testbed.Eventually(t, "the server is empty", time.Minute, func() bool {
			_, err := operator.txn(context.Background(), op{Verb: "delete-tree", Key: "suite"})
			return err == nil
		})
	})
}

// system is a prefix on a server, with its own path for each driver.
type system struct {
	*paths.Server[driver.Fenced]
	prefix   string
	operator *client // bypasses the faults of the paths
	ears     map[driver.Fenced]*ear
}

var namespaces atomic.Int64

func start(t *testing.T, server *testbed.Server) *system {
	b := &system{Server: paths.New[driver.Fenced](server), prefix: fmt.Sprintf("suite/%d/", namespaces.Add(1)),
		operator: operate(server), ears: map[driver.Fenced]*ear{}}
	t.Cleanup(b.operator.idle)
	return b
}

func operate(server *testbed.Server) *client { return newClient(Options{Address: server.Addr()}) }

func (b *system) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		e := &ear{transport: &http.Transport{}}
		t.Cleanup(e.transport.CloseIdleConnections)
		d, err := Open(t.Context(), &Options{Address: path.Addr(), TTL: suiteTTL, Prefix: b.prefix, Transport: e})
		if err != nil {
			return nil, err
		}
		b.ears[d] = e
		return d, nil
	})
}

func (b *system) Faults() drivertest.Faults { return b.Server }

func (b *system) DropPushes(_ *testing.T, d driver.Fenced) { b.ears[d].deaf.Store(true) }

func (b *system) Residue(t *testing.T, name string) []string {
	t.Helper()
	e, _, err := b.operator.get(context.Background(), layout{b.prefix}.lock(name))
	testbed.OK(t, err)
	if e.Session == "" {
		return nil
	}
	return []string{holderOf(e)}
}

func (b *system) Delete(t *testing.T, name string) {
	t.Helper()
	_, err := b.operator.txn(context.Background(), op{Verb: "delete", Key: layout{b.prefix}.lock(name)})
	testbed.OK(t, err)
}

// ear drops every answer to a blocking query while it is deaf; other requests are answered.
type ear struct {
	transport *http.Transport
	deaf      atomic.Bool
}

func (e *ear) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := e.transport.RoundTrip(r)
	if r.URL.Query().Has("index") && e.deaf.Load() {
		if err == nil {
			answer.Body.Close()
		}
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return answer, err
}
