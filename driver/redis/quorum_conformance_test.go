package redis

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const quorumNodes = 5

// quorumSuiteTTL allows for nodes that answer after NodeTimeout.
const quorumSuiteTTL = 3 * time.Second

func TestQuorumAdvisory(t *testing.T) {
	t.Parallel()
	shared := startFive(t)
	shared.grown(t, quorumSuiteTTL)
	drivertest.RunAdvisory(t, drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			on := shared
			if exclusive {
				on = startFive(t)
				on.grown(t, quorumSuiteTTL)
			}
			return newQuorumBackend(t, on)
		},
		TTL:        quorumSuiteTTL,
		Heartbeat:  polls.Max,
		DeadWaiter: polls.Max + time.Second,
		Without:    drivertest.FIFO | drivertest.LostPushes | drivertest.Queue | drivertest.Alone,
	})
}

// five are the servers of a quorum.
type five [quorumNodes]*testbed.Server

func startFive(t testing.TB, extra ...string) five {
	t.Helper()
	var servers five
	for i := range servers {
		servers[i] = testbed.Redis(t, extra...)
	}
	return servers
}

// grown waits until the votes of the servers count, by their uptime.
func (f five) grown(t testing.TB, delay time.Duration) {
	t.Helper()
	for _, s := range f {
		client := dial(t, s.Addr())
		testbed.Eventually(t, "the node is old enough", bound, func() bool { return uptime(t, client) >= delay+time.Second })
	}
}

func uptime(t testing.TB, client rueidis.Client) time.Duration {
	t.Helper()
	text, err := raw(t, client, "INFO", "server").ToString()
	testbed.OK(t, err)
	return parseInfo(text).up
}

// quorumBackend connects each driver to every server by its own paths.
type quorumBackend struct {
	servers   five
	operators []rueidis.Client
	prefix    string
	led       map[driver.Fenced][]*testbed.Proxy
	broken    []func(*testbed.Proxy)
}

var namespaces = make(chan int, 1)

func init() { namespaces <- 0 }

func newQuorumBackend(t *testing.T, on five) *quorumBackend {
	n := <-namespaces
	namespaces <- n + 1
	b := &quorumBackend{servers: on, prefix: fmt.Sprintf("q%d:", n), led: map[driver.Fenced][]*testbed.Proxy{}}
	for _, s := range on {
		b.operators = append(b.operators, dial(t, s.Addr()))
	}
	return b
}

func (b *quorumBackend) Open(t *testing.T) (driver.Fenced, error) {
	var proxies []*testbed.Proxy
	var clients []rueidis.Client
	for _, s := range b.servers {
		proxy := testbed.NewProxy(t, s.Addr())
		for _, damage := range b.broken {
			damage(proxy)
		}
		proxies = append(proxies, proxy)
		client, err := Dial("redis://" + proxy.Addr())
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		clients = append(clients, client)
	}
	// The suite delays answers by half a second, and drops them for as long.
	q, err := OpenQuorum(t.Context(), clients, &QuorumOptions{TTL: quorumSuiteTTL, Prefix: b.prefix, NodeTimeout: 700 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	testbed.CloseAfter(t, q)
	d := drivertest.Advisory(q)
	b.led[d] = proxies
	return d, nil
}

func (b *quorumBackend) Crash(t *testing.T, d driver.Fenced) {
	for _, p := range b.led[d] {
		p.Cut()
	}
	delete(b.led, d)
}

// Residue lists the owners named by a majority: an acquisition and a release return
// once they have one, and the other nodes follow.
func (b *quorumBackend) Residue(t *testing.T, name string) []string {
	named := map[string]int{}
	for _, operator := range b.operators {
		holder, err := raw(t, operator, "GET", b.prefix+name).ToString()
		switch {
		case rueidis.IsRedisNil(err):
		case err != nil:
			t.Fatal(err)
		default:
			named[holder]++
		}
	}
	maps.DeleteFunc(named, func(_ string, n int) bool { return n < majorityOf(quorumNodes) })
	return slices.Sorted(maps.Keys(named))
}

func (b *quorumBackend) Delete(t *testing.T, name string) {
	for _, operator := range b.operators {
		testbed.Eventually(t, "the operator's deletion", bound, func() bool {
			return raw(t, operator, "DEL", b.prefix+name).Error() == nil
		})
	}
}

func (b *quorumBackend) Faults() drivertest.Faults { return b }

func (b *quorumBackend) all(do func(*testbed.Server)) {
	for _, s := range b.servers {
		do(s)
	}
}

func (b *quorumBackend) each(damage func(*testbed.Proxy)) {
	for _, proxies := range b.led {
		for _, p := range proxies {
			damage(p)
		}
	}
}

func (b *quorumBackend) damage(f func(*testbed.Proxy)) {
	b.broken = append(b.broken, f)
	b.each(f)
}

func (b *quorumBackend) down()    { b.broken = append(b.broken, (*testbed.Proxy).Cut) }
func (b *quorumBackend) Kill()    { b.down(); b.all((*testbed.Server).Kill) }
func (b *quorumBackend) Restart() { b.all((*testbed.Server).Restart); b.Heal() }
func (b *quorumBackend) Wipe()    { b.all((*testbed.Server).Wipe); b.Heal() }
func (b *quorumBackend) Pause()   { b.down(); b.all((*testbed.Server).Pause) }
func (b *quorumBackend) Resume()  { b.all((*testbed.Server).Resume); b.Heal() }
func (b *quorumBackend) Cut()     { b.damage((*testbed.Proxy).Cut) }
func (b *quorumBackend) Heal() {
	b.broken = nil
	b.each((*testbed.Proxy).Heal)
}
func (b *quorumBackend) DropReplies() { b.damage((*testbed.Proxy).DropReplies) }
func (b *quorumBackend) Delay(oneWay time.Duration) {
	b.damage(func(p *testbed.Proxy) { p.Delay(oneWay) })
}
