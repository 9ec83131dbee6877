package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/interlock-dev/interlock/claim/elect/electtest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// TestOutagesLeaveNoCandidateBehind on etcd.
func TestOutagesLeaveNoCandidateBehind(t *testing.T) {
	t.Parallel()
	p := paths.New[driver.Fenced](testbed.Etcd(t))
	const outage = suiteTTL + time.Second
	electtest.Outages(t, electtest.World{
		Open: func(t *testing.T) (driver.Fenced, driver.Values) {
			var client *clientv3.Client
			d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
				client = dial(t, path.Addr())
				return Open(t.Context(), client, &Options{TTL: suiteTTL})
			})
			testbed.OK(t, err)
			return d, NewValues(client, "values/")
		},
		Faults: map[string]func(){
			"a partition":    func() { p.Cut(); time.Sleep(outage); p.Heal() },
			"lost replies":   func() { p.DropReplies(); time.Sleep(outage); p.Heal() },
			"a stopped one":  func() { p.Pause(); time.Sleep(outage); p.Resume() },
			"a short outage": func() { p.Kill(); p.Restart() },
		},
	})
}

// TestSilentConnectionIsClosed by a client that was opened from a URL: until then it sends requests there.
func TestSilentConnectionIsClosed(t *testing.T) {
	t.Parallel()
	proxy := testbed.NewProxy(t, serverFor(t).Addr())
	u, err := backend.Parse("etcd://" + proxy.Addr())
	testbed.OK(t, err)
	opened, err := connect(t.Context(), u)
	testbed.OK(t, err)
	t.Cleanup(func() { testbed.OK(t, opened.Close()) })
	client := opened.(connection).client
	testbed.Receive(t, client.Watch(t.Context(), "x", clientv3.WithCreatedNotify()), "the watch")
	conn := client.ActiveConnection()
	proxy.Cut()
	if !conn.WaitForStateChange(testbed.Bounded(t), connectivity.Ready) {
		t.Error("it stays open")
	}
}
